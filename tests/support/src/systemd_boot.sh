# Boots systemd as PID 1 of new namespaces. systemd.rs explains the purpose, and runs this script in a new mount
# namespace. $1: the name of the cgroup. $2: the directory of the programs under test; empty if packages contain them.
# $3: enter; boot, once the namespaces exist; or leave, once the processes are killed. Then pairs: a file or directory of the machine, and
# the place that it covers. $ROOT: the root whose systemd boots; empty for the machine's own.
set -eu
umask 022
group=$1 programs=$2 part=$3
shift 3
# systemd gets its own hierarchy of cgroups, whether or not the machine has mounted it.
hierarchy=/mnt
at=$hierarchy/$group

case $part in
enter | leave)
    mount --make-rprivate /
    mount -t cgroup -o none,name=systemd none $hierarchy
    ;;
esac
if [ "$part" = leave ]; then
    for _ in $(seq 300); do
        # The processes may take a moment to end.
        find "$at" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -d "$at" ] || exit 0
        sleep 0.1
    done
    echo "processes are left in $at: $(find "$at" -name cgroup.procs -exec cat {} +)" >&2
    exit 1
fi
if [ "$part" = enter ]; then
    mkdir "$at"
    echo $$ >"$at/cgroup.procs"
    # systemd runs without the capabilities with which a service could change the machine.
    exec setpriv --pdeathsig KILL --bounding-set -sys_module,-sys_time,-sys_rawio,-syslog,-audit_control \
        unshare --fork --kill-child --pid --mount --cgroup --ipc --uts --net sh "$0" "$group" "$programs" boot "$@"
fi

# The kernel shows the PID in the PID namespace of the mount, which is still the machine's here.
read -r pid rest </proc/self/stat
echo "pid $pid"

umount $hierarchy
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/root
mount --bind /mnt/root /mnt/root
cd /mnt/root
over() {
    mkdir -p "/mnt/upper/$1" "/mnt/work/$1" "$1"
    mount -t overlay -o "lowerdir=$ROOT/$1,upperdir=/mnt/upper/$1,workdir=/mnt/work/$1" none "$1"
}
# The programs lie on the machine's own file system. On an overlay, TiExec copies the text of another user's process only
# if it knows that all layers are local.
mkdir usr
mount --bind "$ROOT/usr" usr
mount -o remount,bind,ro usr
for link in bin sbin lib lib32 lib64 libx32; do
    [ ! -L "$ROOT/$link" ] || cp -P "$ROOT/$link" .
done
for directory in etc var usr/bin; do
    over $directory
done
mkdir -p dev home mnt opt proc root run srv sys tmp
if [ -n "$programs" ]; then
    for program in tiexec tiexecctl tiexecd; do
        touch usr/bin/$program
        mount --bind "$programs/$program" usr/bin/$program
    done
else
    for directory in usr/share usr/lib/systemd; do
        over $directory
    done
fi
# This program is a link to another name.
redis=$(readlink -f "$ROOT/usr/bin/redis-server")
[ ! -e "$redis" ] || mount --bind "$redis" ".${redis#"$ROOT"}"

mount -t proc none proc
# systemd mounts each controller of this list, and would leave its groups in the machine's hierarchies. So the list is empty.
printf '#subsys_name\thierarchy\tnum_cgroups\tenabled\n' >/mnt/cgroups
mount --bind /mnt/cgroups proc/cgroups
# All namespaces share these settings.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro none sys
mount -t tmpfs -o mode=755 none sys/fs/cgroup
mkdir sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd none sys/fs/cgroup/systemd
for own in dev run tmp; do
    mount -t tmpfs -o mode=755 none $own
done
chmod 1777 tmp
while [ $# -gt 1 ]; do
    mount --bind "$1" ".$2"
    shift 2
done
for node in null zero full random urandom tty; do
    touch dev/$node
    mount --bind /dev/$node dev/$node
done
# Packages may start and stop services here.
[ ! -e usr/sbin/policy-rc.d ] || mount --bind dev/null usr/sbin/policy-rc.d
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 none dev/pts
mount -t tmpfs -o mode=1777 none dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

# Only the units that are named here are started.
for directory in usr/lib/systemd/system/*.wants usr/lib/systemd/system-generators; do
    mount -t tmpfs -o ro none "$directory"
done
rm -rf etc/systemd/system/*.wants
# An installed TiExec must not act on this systemd.
rm -rf etc/tiexec etc/systemd/system/run-tiexec-images.mount etc/systemd/system/*.d/50-tiexec.conf
wanted() {
    wants=etc/systemd/system/$1.wants
    mkdir -p "$wants"
    shift
    for unit; do
        ln -s "/usr/lib/systemd/system/$unit" "$wants/$unit"
    done
}
wanted sysinit.target systemd-journald.service systemd-tmpfiles-setup.service
wanted sockets.target systemd-journald.socket systemd-journald-dev-log.socket dbus.socket
for unit in systemd-journald-audit.socket systemd-logind.service systemd-remount-fs.service systemd-udevd.service; do
    ln -sf /dev/null etc/systemd/system/$unit
done
mkdir -p etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nRateLimitBurst=0\n' >etc/systemd/journald.conf.d/test.conf

pivot_root . mnt
umount -l /mnt
exec env -i container=tiexec-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    SYSTEMD_PROC_CMDLINE="systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1" \
    /lib/systemd/systemd --system --unit=basic.target
