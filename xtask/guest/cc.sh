#!/bin/sh
# This script stands for every compiler in a guest. The host compiles (xtask/src/vm/compile.rs). The request includes
# files that were made in the guest.
. /vm/settings
request=$(mktemp -d /vm/compile/XXXXXX) || exit 1
out=
previous=
count=0
{
    echo "${0##*/}"
    for word; do
        case $word in
        "$files"/*.so* | "$files"/*.o | "$files"/*.a)
            if [ "$previous" != -o ] && [ -f "$word" ]; then
                count=$((count + 1))
                mkdir -p "$request/given/$count"
                cp "$word" "$request/given/$count"
                word=given/$count/${word##*/}
            fi
            ;;
        esac
        previous=$word
        printf '%s\n' "$word"
    done
} >"$request/asking"
previous=
for word; do
    [ "$previous" != -o ] || out=$word
    previous=$word
done
mv "$request/asking" "$request/asked"
while [ ! -e "$request/answered" ]; do sleep 0.1; done
cat "$request/stdout"
cat "$request/stderr" >&2
status=$(cat "$request/answered")
[ "$status" != 0 ] || [ -z "$out" ] || install -m 755 "$request/program" "$out" || status=1
exit "$status"
