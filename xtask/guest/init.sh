#!/bin/busybox sh
# The first program of a guest: loads the modules for the root disk, and switches to that disk.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    # Our own kernels have everything built in.
    [ -e "$module" ] && { $B insmod "$module" || echo "vm-test: insmod $module failed"; }
done
n=0
while [ ! -b /dev/vdb ] && [ $n -lt 100 ]; do $B sleep 0.1; n=$((n + 1)); done
$B mount -t ext4 /dev/vda /root || { echo "vm-test: no root disk"; $B poweroff -f; }
for place in proc sys dev; do $B mount -o move /$place /root/$place; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 shared /root/vm || {
    echo "vm-test: no shared directory"
    $B poweroff -f
}
exec $B switch_root /root /bin/sh /vm/tests.sh
