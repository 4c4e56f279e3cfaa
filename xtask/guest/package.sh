# Runs in a new root, which has little more than dpkg and man, with the package as /tiexec.deb. Installs, uses and
# removes the package.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
step() { echo "package: $*"; }
mount -t proc proc /proc
mount -t sysfs sys /sys

step install
dpkg -i /tiexec.deb
tiexec --version
tiexecctl --version
step launch
tiexec /bin/true
status=0
tiexec --report sh -c 'exit 7' || status=$?
[ $status = 7 ] || { step "status $status of a program that ends with 7"; exit 1; }
step doctor
tiexecctl doctor
step manual
for page in '1 tiexec' '8 tiexecctl'; do
    # shellcheck disable=SC2086
    man -w $page
done
for file in bash-completion/completions/tiexec zsh/vendor-completions/_tiexec fish/vendor_completions.d/tiexec.fish doc/tiexec/copyright; do
    [ -s /usr/share/$file ] || { step "no $file"; exit 1; }
done
step remove
dpkg --purge tiexec
if [ -e /usr/bin/tiexec ] || [ -e /usr/share/doc/tiexec ]; then
    step "something is left"
    exit 1
fi
step good
