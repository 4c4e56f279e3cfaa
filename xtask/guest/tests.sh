# Runs the tests in a guest, as its first program and as root.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C
. /vm/settings

share() {
    mkdir -p "$2"
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 "$1" "$2" ||
        echo "vm-test: cannot share $1"
}
share modules /lib/modules
share repository "$repository"
share target "$target"
mkdir -p /dev/pts /dev/shm /mnt /usr/local/bin
mount -t devpts devpts /dev/pts
mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# systemd would enable these controllers.
echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
modprobe fuse 2>/dev/null
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
echo guest >/proc/sys/kernel/hostname
# The directory for the tests' own files lies on the requested disk.
mount /dev/vdb "$files" || echo "vm-test: no disk for programs"
while read -r name; do install -m 755 /vm/cc.sh /usr/local/bin/"$name"; done </vm/compilers
# The machines of the project's developers have this setting.
thp=/sys/kernel/mm/transparent_hugepage
pool=/proc/sys/vm/nr_hugepages
[ ! -e $thp ] || echo madvise >$thp/enabled
export TIEXEC_TEST_PATIENCE=20 TIEXEC_TEST_THROWAWAY=1

# Runs the doctor as root and as a user. Pages are in the pool, so that it finds them.
ask_the_doctor() {
    mkdir -m 1777 /disk "$files"/doctor
    mount --bind "$files"/doctor /disk
    [ ! -e $pool ] || echo 2 >$pool
    TMPDIR=/disk "$programs"/tiexecctl doctor --json >/vm/out/doctor.root
    TMPDIR=/disk setpriv --reuid=65534 --regid=65534 --clear-groups "$programs"/tiexecctl doctor --json >/vm/out/doctor.user
    [ ! -e $pool ] || echo 0 >$pool
    umount /disk
    # Before Linux 6.1 memfds become huge only by this setting.
    if ! is_ok image && [ -e $thp/shmem_enabled ]; then
        echo advise >$thp/shmem_enabled
        "$programs"/tiexecctl doctor --json >/vm/out/doctor.root.advise
    fi
}
# Returns whether the doctor found the thing ok.
is_ok() {
    cat /vm/out/doctor.root* | grep -q "\"level\":\"ok\",\"thing\":\"$1\""
}
# Returns whether the doctor found ok what the tests need. Most programs of tests that make copies have 6 MiB of text.
finds_ok() {
    case $1 in
        -) ;;
        image) is_ok image && grep -q 'huge page 2.0 MiB' /vm/out/doctor.root ;;
        *) is_ok "$1" ;;
    esac
}
[ "$doctor" = no ] || ask_the_doctor

cd "$repository/crates/cli" || echo "vm-test: no repository"
tab=$(printf '\t')
while IFS=$tab read -r name program needs only <&3; do
    if ! finds_ok "$needs"; then
        echo "not run" >/vm/out/"$name".status
        echo "vm-test: $name: not run, because the doctor does not find $needs ok"
        continue
    fi
    start=$(cut -d. -f1 /proc/uptime)
    # shellcheck disable=SC2086
    timeout -k 10 "$limit" "$program" --test-threads=2 $only >/vm/out/"$name".log 2>&1 </dev/null
    status=$?
    echo $status >/vm/out/"$name".status
    echo "vm-test: $name: $(sed -n 's/^test result: //p' /vm/out/"$name".log | cut -d';' -f1-3) ($(($(cut -d. -f1 /proc/uptime) - start)) s, status $status)"
done 3</vm/tests
{ (. /vm/command); echo $? >/vm/out/command.status; } 2>&1 </dev/null | sed 's/^/vm-test: /'
dmesg >/vm/out/dmesg
sync
busybox poweroff -f
