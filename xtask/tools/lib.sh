# Sourced by cases.sh: how a case starts a program on each way. `cargo xtask tools-test` sets
#   WAY         plain, pagecache, store, memfd or revert
#   MODE        launch, or attach to the running program
#   PROGRAMS    the directory of tiexec and tiexecctl
#   SHARED      a directory for what is compiled once for all cases
#   TOOLS       the directory of this file
#   CACHE       the directory of programs that scripts/setup has unpacked
# The working directory is empty, and /run is the case's own. A case prints what the tool says, as lines that plain must equal.
set -u
export LC_ALL=C DEBUGINFOD_URLS=

skip() {
    echo "$*" >&2
    exit 77
}
fail() {
    echo "$*" >&2
    exit 1
}
# need TOOL PACKAGE
need() { command -v "$1" >/dev/null || skip "no $1 (Debian's $2)"; }

pid=
tracer=
cleanup() {
    for process in $tracer $pid; do kill -KILL "$process" 2>/dev/null; done
    # The command of a perf record waits for a line.
    [ ! -p stop ] || timeout 1 sh -c 'echo >stop'
}
trap cleanup EXIT

# until_true SECONDS WHAT COMMAND…: waits until the command succeeds.
until_true() {
    local seconds=$1 what=$2 left
    shift 2
    left=$((seconds * 20))
    until "$@"; do
        [ $((left--)) -gt 0 ] || fail "timed out: $what: $(tail -n 3 err out 2>/dev/null | tr '\n' ' ')"
        sleep 0.05
    done
}

# once NAME COMMAND…: runs the command once for all cases, in a directory that then is $SHARED/NAME.
once() {
    local name=$1 new
    shift
    [ -d "$SHARED/$name" ] && return 0
    new=$(mktemp -d "$SHARED/new.XXXXXX")
    (cd "$new" && "$@" >log 2>&1) || {
        tail -n 3 "$new/log" >&2
        rm -rf "$new"
        return 1
    }
    mv "$new" "$SHARED/$name"
}

# An object with 3 MiB of code, 800 functions.
pad() {
    {
        echo .text
        for i in $(seq 800); do
            printf '.globl %s%d\n.type %s%d,@function\n.p2align 4\n%s%d:\n.fill 1000,4,0x90909090\nret\n.size %s%d,.-%s%d\n' \
                "$1" "$i" "$1" "$i" "$1" "$i" "$1" "$i" "$1" "$i"
        done
        echo '.section .note.GNU-stack,"",@progbits'
    } >"$1.s"
    cc -c "$1.s" -o "$1.o"
    rm "$1.s"
}
pads() { pad before && pad after; }

link_program() {
    local source=$1
    shift
    local more=()
    # A path of this repository may have a name that a case looks for.
    local debug=(-g "-fdebug-prefix-map=$TOOLS=tools")
    cc -O1 "${debug[@]}" $compile $pic -fno-omit-frame-pointer -fno-optimize-sibling-calls -c "$TOOLS/subject.c" -o main.o || return
    case $source in
    '') ;;
    *.c) cc -O1 "${debug[@]}" -w $compile $pic -fno-optimize-sibling-calls -c "$TOOLS/$source" -o trace.o || return ;;
    *) c++ -O1 "${debug[@]}" -w $compile $pic -fno-optimize-sibling-calls -c "$TOOLS/$source" -o trace.o || return ;;
    esac
    [ -z "$source" ] || more=(trace.o)
    c++ $compile $pie -rdynamic -Wl,--build-id -o subject "$SHARED/pads/before.o" main.o "${more[@]}" "$SHARED/pads/after.o" "$@"
}

# Further options for the compiler.
compile=
# Programs are position-independent, as those of distributions. An attach cannot move one to where its text is congruent, which the page cache
# and an image of the store with the file's offsets need.
pic=-fPIE
pie=-pie
fixed_address() {
    pic=-fno-PIE
    pie=-no-pie
}
case $WAY-$MODE in
pagecache-attach | store-attach) fixed_address ;;
esac

# program [SOURCE [LINKER OPTION…]]: makes ./subject from subject.c, and the source with its trace().
program() {
    local name
    name=subject-$(echo "$compile $pic $*" | cksum | cut -d' ' -f1)
    once pads pads || fail "cannot assemble"
    once "$name" link_program "${1:-}" "${@:2}" || return
    private "$SHARED/$name/subject" subject
}

# private FILE NAME: makes a private copy of a file. The page cache holds it in huge pages, if this is the way, or not at all.
private() {
    cp "$1" "$2" && sync "$2" || fail "cannot copy $1"
    case $WAY in
    pagecache)
        "$PROGRAMS/tiexecctl" warm "$PWD/$2" >warm 2>&1 || skip "the page cache cannot be huge here: $(tail -n 1 warm)"
        ;;
    store)
        # The case's own /run gets the system's store.
        mountpoint -q /run/tiexec/images || "$PROGRAMS/tiexecctl" store setup --size 1G >&2 || fail "no store"
        "$PROGRAMS/tiexecctl" store add "$PWD/$2" >&2 || fail "no image of $2"
        ;;
    esac
}

backing() {
    case $WAY in
    pagecache) echo pagecache ;;
    *) echo image ;;
    esac
}

# What stands before a program that is launched; a tool that starts it can stand before that.
front=()

# begin PROGRAM [ARGUMENT…]: starts the program on the case's way. $pid is its process. It must print a line "ready".
begin() {
    local launch=()
    if [ "$MODE" = launch ] && [ "$WAY" != plain ]; then
        launch=("$PROGRAMS/tiexec" --strict "--backing=$(backing)" ${options[@]+"${options[@]}"})
    fi
    mkfifo in
    touch out
    exec 9<>in
    "${front[@]}" "${launch[@]}" "$@" <in >out 2>err 9>&- &
    pid=$!
    until_true 60 "the program's start" started
    if [ ${#front[@]} -gt 0 ]; then
        tracer=$pid
        pid=$(pgrep -o -P "$tracer")
    fi
    if [ "$MODE" = attach ]; then
        attach
    else
        until_true 60 "text by $WAY" took
    fi
}
started() { grep -qx ready out || { ! kill -0 "$pid" 2>/dev/null && fail "it ended: $(tail -n 2 err | tr '\n' ' ')"; }; }

# attach: does the way's work on the running program.
attach() {
    case $WAY in
    plain) return ;;
    esac
    ${before_attach-true}
    "$PROGRAMS/tiexecctl" attach "--backing=$(backing)" ${options[@]+"${options[@]}"} "$pid" >attach 2>&1 || fail "attach: $(tail -n 2 attach | tr '\n' ' ')"
    took || fail "not by $WAY: $(tail -n 3 attach | tr '\n' ' ')"
    if [ "$WAY" = revert ]; then
        "$PROGRAMS/tiexecctl" revert "$pid" >revert 2>&1 || fail "revert: $(tail -n 2 revert | tr '\n' ' ')"
        ! grep -q 'tiexec[:/]' "/proc/$pid/maps" || fail "not reverted"
    fi
}
# Further options of TiExec.
options=()

# took: whether the kernel says that the text is on this way's pages.
took() {
    case $WAY in
    plain) ! grep -q 'tiexec[:/]' "/proc/$pid/maps" ;;
    pagecache)
        awk '/FilePmdMapped/ { huge += $2 } END { exit !huge }' "/proc/$pid/smaps" && ! grep -q 'tiexec[:/]' "/proc/$pid/maps"
        ;;
    store) grep -q 'r-xp.*/run/tiexec/images/' "/proc/$pid/maps" ;;
    memfd | revert) grep -q 'r-xp.*memfd:tiexec' "/proc/$pid/maps" ;;
    esac
}

say() { echo "$1" >&9; }
said() { grep -qx "$1" out; }
# ended: waits until the program has ended.
ended() {
    until_true 60 "the program's end" gone
    wait "$pid" 2>/dev/null
    pid=
}
gone() { ! kill -0 "$pid" 2>/dev/null || grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null; }

# names WORD…: prints these words where the text on stdin has them, in its order.
names() {
    local pattern
    pattern=$(IFS='|'; echo "$*")
    grep -aowE "$pattern" || true
}
