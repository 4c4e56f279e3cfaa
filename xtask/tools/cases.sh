#!/bin/bash
# cases.sh CASE: asks one tool about one program, on the way that the environment says (lib.sh).
. "$TOOLS/lib.sh"

waiting=(wait_inner wait_outer main)
failing=(fail_inner fail_outer main)
gdb=(gdb -nx -batch -iex 'set debuginfod enabled off')

# The functions of the subject in a backtrace by lldb.
lldb_names() { sed -n 's/.*frame #[0-9]*: .* subject`\([a-z_]*\).*/\1/p' | uniq; }

# A core dump by the kernel, as ./dumped.
kernel_core() {
    [ "$(cat /proc/sys/kernel/core_pattern)" = core ] || skip "kernel.core_pattern is not \"core\""
    ulimit -c unlimited
    begin ./subject
    say abort
    ended
    mv core* dumped || fail "the kernel wrote no core"
}
gcore_core() {
    need gcore gdb
    begin ./subject
    gcore -o dumped "$pid" >gcore 2>&1 || fail "gcore: $(tail -n 1 gcore)"
    mv dumped.* dumped
}

gdb_live() {
    need gdb gdb && program
    begin ./subject
    gdb_names "$pid"
}
# gdb_names PID [FILE]: gdb takes the file for the process's program.
gdb_names() { "${gdb[@]}" -p "$1" -ex bt ${2+"$2"} 2>>tool | names "${waiting[@]}"; }
gdb_deleted() {
    need gdb gdb && program
    begin ./subject
    rm subject
    gdb_names "$pid" "/proc/$pid/exe"
}
gdb_upgraded() {
    need gdb gdb && program
    begin ./subject
    # Another program takes the path, as in an upgrade of a package.
    cp /bin/true new && mv new subject
    gdb_names "$pid" "/proc/$pid/exe"
}
# A second process of the file that only the kernel has started.
gdb_beside() {
    need gdb gdb && program
    begin ./subject
    mkfifo in.beside && touch out.beside
    ./subject <>in.beside >out.beside 2>&1 9>&- &
    tracer=$!
    until_true 60 "the second process" grep -qx ready out.beside
    gdb_names "$tracer"
    gdb_names "$pid"
}
# Runs the program where its file has another path, which nobody else sees.
in_container() {
    front=(unshare --mount --propagation=private --fork sh -ec 'mount --bind "$PWD" /mnt && cd /mnt && exec "$@"' sh)
    begin ./subject
    [ "$(readlink "/proc/$pid/exe")" = /mnt/subject ] || fail "the program is not in its own mount namespace"
}
gdb_container() {
    need gdb gdb && program
    in_container
    gdb_names "$pid"
}
gdb_in_container() {
    need gdb gdb && program
    in_container
    nsenter --mount="/proc/$pid/ns/mnt" "${gdb[@]}" -p "$pid" -ex bt 2>tool | names "${waiting[@]}"
}
perf_container() {
    can_perf && program
    in_container
    record
    spin
    stop_recording
    most_sampled
}
gdb_breakpoint() {
    need gdb gdb && program
    begin ./subject
    "${gdb[@]}" -p "$pid" -ex 'break probed' -ex 'shell echo armed >armed' -ex continue -ex bt -ex finish -ex delete -ex detach >tool 2>&1 &
    tracer=$!
    until_true 60 "gdb" test -s armed
    say call
    wait "$tracer"
    tracer=
    names 'probed|main' <tool | sort -u
    until_true 60 "the call" said 'done'
}
gdb_core() {
    need gdb gdb && program
    kernel_core
    "${gdb[@]}" -ex bt ./subject dumped 2>tool | names "${failing[@]}" | uniq
}
gdb_gcore() {
    need gdb gdb && program
    gcore_core
    "${gdb[@]}" -ex bt ./subject dumped 2>tool | names "${waiting[@]}" | uniq
}
lldb_live() {
    need lldb-14 lldb && program
    begin ./subject
    lldb-14 --no-lldbinit --batch -p "$pid" -o bt 2>tool | lldb_names
}
lldb_core() {
    need lldb-14 lldb && program
    kernel_core
    lldb-14 --no-lldbinit --batch -c dumped ./subject -o bt 2>tool | lldb_names
}
eu_stack_live() {
    need eu-stack elfutils && program
    begin ./subject
    eu-stack -p "$pid" 2>tool | names "${waiting[@]}"
}
eu_stack_core() {
    need eu-stack elfutils && program
    kernel_core
    eu-stack "--core=$PWD/dumped" 2>tool | names "${failing[@]}"
}
# The program beside the core: the line that the guide gives.
eu_stack_program_core() {
    need eu-stack elfutils && program
    kernel_core
    eu-stack -e "$PWD/subject" "--core=$PWD/dumped" 2>tool | names "${failing[@]}"
}
eu_stack_gcore() {
    need eu-stack elfutils && program
    gcore_core
    eu-stack "--core=$PWD/dumped" 2>tool | names "${waiting[@]}"
}

systemd_coredump() {
    local program=
    for place in {,"$CACHE"/systemd-coredump}{/usr,}/lib/systemd/systemd-coredump; do
        [ ! -x "$place" ] || program=${program:-$place}
    done
    [ -n "$program" ] || skip "no systemd-coredump"
    need python3 python3 && program
    kernel_core
    # The program keeps the core below /var/lib/systemd.
    mount -t tmpfs -o mode=0755 tools-test /var/lib/systemd || fail "cannot mount"
    timeout 90 python3 "$TOOLS/coredump.py" "$program" dumped "$PWD/subject" 4242 >tool 2>tool.err || fail "systemd-coredump: $(tail -n 1 tool.err)"
    names "${failing[@]}" <tool
}

perf_options=(-q -F 999 -e cpu-clock:u -o perf.data)
can_perf() {
    need perf linux-perf
    # perf keeps files that it has seen below the home directory.
    export HOME=$PWD
    perf record "${perf_options[@]}" true 2>perf.err || skip "perf may not record: $(tail -n 1 perf.err)"
}
# Records the running program until stop_recording.
record() {
    mkfifo stop
    perf record "${perf_options[@]}" -p "$pid" -- sh -c 'touch recording; read line <stop' >tool 2>&1 &
    tracer=$!
    until_true 60 "perf record" test -e recording
}
stop_recording() {
    echo >stop
    wait "$tracer"
    tracer=
}
# Lets the program use 0.3 s of processor time, and then wait again.
spin() {
    say spin
    until_true 60 "the program's work" has_used 30
    say stop
    until_true 60 "the program's work" said 'done'
}
has_used() { [ "$(cut -d' ' -f14 "/proc/$pid/stat")" -ge "$1" ]; }
# The function of most samples of the subject.
most_sampled() { perf script -F comm,ip,sym -i perf.data 2>tool | awk '$1 == "subject" { print $3 }' | sort | uniq -c | sort -rn | head -n 1 | names spin_inner; }

perf_before() {
    can_perf && program
    if [ "$MODE" = launch ]; then
        front=(perf record "${perf_options[@]}" --)
    else
        before_attach=record
    fi
    begin ./subject
    spin
    if [ "$MODE" = launch ]; then
        say ''
        until_true 60 "perf" perf_is_done
    else
        stop_recording
    fi
    most_sampled
}
perf_is_done() { ! kill -0 "$tracer" 2>/dev/null; }
perf_after() {
    can_perf && program
    begin ./subject
    record
    spin
    stop_recording
    most_sampled
}
perf_build_ids() {
    can_perf && program
    begin ./subject
    record
    spin
    stop_recording
    local id
    id=$(readelf -n subject | sed -n 's/.*Build ID: //p')
    perf buildid-list -i perf.data 2>tool | names "$id" | sed 's/.*/the build ID of the program/'
}
bpftrace_uprobe() {
    need bpftrace bpftrace && program
    begin ./subject
    timeout 60 bpftrace -p "$pid" -e "uprobe:$PWD/subject:probed { printf(\"%s\\n\", ustack()); exit(); } BEGIN { printf(\"armed\\n\"); }" >tool 2>tool.err &
    tracer=$!
    until_true 60 "bpftrace" bpftrace_is_armed
    say call
    until_true 60 "the call" said 'done'
    # A probe that does not fire leaves bpftrace waiting.
    [ "$WAY" = plain ] || (sleep 2; kill -INT "$tracer" 2>/dev/null) &
    wait "$tracer"
    tracer=
    names probed main <tool
}
bpftrace_is_armed() { grep -q armed tool || { ! kill -0 "$tracer" 2>/dev/null && skip "bpftrace does not run: $(tail -n 1 tool.err)"; }; }
bpftrace_stack() {
    need bpftrace bpftrace && program
    begin ./subject
    say spin
    until_true 60 "the program's work" said spinning
    timeout 60 bpftrace -p "$pid" -e "profile:hz:99 /pid == $pid/ { printf(\"%s\\n\", ustack()); exit(); }" >tool 2>tool.err || skip "bpftrace does not run: $(tail -n 1 tool.err)"
    names spin_inner spin_outer main <tool
}
# bcc's tools that need no kernel headers. They trace for two seconds.
bcc_uprobe() {
    bcc funclatency -d 2 :probed
    if grep -q '[0-9] -> ' tool; then echo probed; fi
}
bcc_stack() {
    bcc offcputime 2
    names wait_outer main <tool | sort -u
}
# bcc TOOL ARGUMENT…: traces the program while it calls a function again and again.
bcc() {
    need "$1" libbpf-tools && program
    begin ./subject
    timeout 60 "$1" -p "$pid" "${@:2}" >tool 2>tool.err &
    tracer=$!
    while kill -0 "$tracer" 2>/dev/null; do
        say call
        sleep 0.1
    done
    wait "$tracer" || skip "$1 does not run: $(tail -n 1 tool.err)"
    tracer=
}
gperftools() {
    need google-pprof google-perftools
    program '' -Wl,--no-as-needed -lprofiler || skip "no libprofiler (Debian's libgoogle-perftools-dev)"
    export CPUPROFILE=$PWD/profile
    begin ./subject
    unset CPUPROFILE
    spin
    say ''
    ended
    HOME=$PWD google-pprof --text ./subject profile 2>tool | names spin_inner | head -n 1
}
tcmalloc() {
    need google-pprof google-perftools
    program trace_heap.c -Wl,--no-as-needed -ltcmalloc || skip "no libtcmalloc (Debian's libgoogle-perftools-dev)"
    export HEAPPROFILE=$PWD/heap
    begin ./subject
    unset HEAPPROFILE
    say trace
    until_true 60 "the allocations" said 'done'
    say ''
    ended
    HOME=$PWD google-pprof --text ./subject "$(ls heap.*.heap | tail -n 1)" 2>tool | names heap_inner trace_inner main | sort -u
}
jemalloc() {
    need jeprof libjemalloc-dev
    program trace_heap.c -Wl,--no-as-needed -ljemalloc || skip "no libjemalloc (Debian's libjemalloc-dev)"
    export MALLOC_CONF=prof:true,prof_final:true,lg_prof_sample:0,prof_prefix:heap
    begin ./subject
    unset MALLOC_CONF
    say trace
    until_true 60 "the allocations" said 'done'
    say ''
    ended
    local heap
    heap=$(ls heap.*.heap 2>/dev/null | tail -n 1)
    [ -n "$heap" ] || skip "this libjemalloc has no profiles: $(tail -n 1 err)"
    HOME=$PWD jeprof --text ./subject "$heap" 2>tool | names heap_inner trace_inner main | sort -u
}
tracing=(trace_inner trace_outer main)
# The program itself prints its stack.
own_trace() {
    begin ./subject
    say trace
    until_true 60 "the trace" said_or_gone
    names "${tracing[@]}" <err
}
said_or_gone() { said 'done' || gone; }
glibc() {
    program trace_glibc.c
    own_trace
}
libunwind() {
    program trace_libunwind.c -lunwind || skip "no libunwind (Debian's libunwind-dev)"
    own_trace
}
libbacktrace() {
    compile=-DBOOST_STACKTRACE_LINK
    program trace_boost.cc -lboost_stacktrace_backtrace -ldl || skip "no Boost.Stacktrace (Debian's libboost-stacktrace-dev)"
    own_trace
}
boost() {
    program trace_boost.cc -ldl || skip "no Boost.Stacktrace (Debian's libboost-stacktrace-dev)"
    own_trace
}
glog() {
    program trace_glog.cc -lglog || skip "no glog (Debian's libgoogle-glog-dev)"
    own_trace
}
asan() {
    once pads pads || fail "cannot assemble"
    compile=-fsanitize=address
    program trace_asan.c || skip "no AddressSanitizer"
    own_trace
}
make_panic() {
    local programs=$TOOLS/../../tests/programs
    cc -c "$programs/panic_pad.s" -o pad.o &&
        rustc -g --edition 2024 -C link-arg=-Wl,--build-id -C link-arg="$PWD/pad.o" "$programs/panic.rs"
}
rust() {
    need rustc rustc
    case $WAY-$MODE in
    pagecache-attach | store-attach) skip "only a launch can do this for a position-independent program" ;;
    esac
    once panic make_panic || fail "rustc cannot build"
    private "$SHARED/panic/panic" panic
    export RUST_BACKTRACE=1
    begin ./panic
    say now
    ended
    names 'panic::deep' 'panic::main' <err
}
# go_pad FUNCTION: 2.5 MiB of code in assembler.
go_pad() {
    echo "TEXT ·$1(SB),4,\$0"
    yes 'QUAD $0x9090909090909090' | head -n 327680
    echo RET
}
make_go() {
    cp -r "$TOOLS/go" source && cd source || return
    go_pad Before >pads/pad_amd64.s
    go_pad after >pad_amd64.s
    GOFLAGS=-mod=mod GOTOOLCHAIN=local GOCACHE=$SHARED/go-cache go build -o ../crash .
}
go_program() {
    need go golang-go
    once go make_go || fail "go cannot build"
    private "$SHARED/go/crash" crash
    begin ./crash
}
go_panic() {
    go_program
    say panic
    ended
    names main.deep main.main <err
}
go_pprof() {
    go_program
    say profile
    until_true 60 "the profile" said 'done'
    go tool pprof -top -nodecount=3 ./crash cpu.pprof 2>tool | names main.spin
}
# A private copy of the JDK; its data stays where it is.
jdk() {
    need java openjdk-17-jdk-headless
    local home
    home=$(readlink -f "$(command -v java)")
    home=${home%/bin/java}
    mkdir -p jdk/bin jdk/lib/server
    cp -rs "$home/." jdk
    rm -f jdk/bin/java jdk/lib/server/libjvm.so jdk/lib/libjli.so
    cp "$home/bin/java" jdk/bin/java
    cp "$home/lib/libjli.so" jdk/lib/libjli.so
    private "$home/lib/server/libjvm.so" jdk/lib/server/libjvm.so
    once java make_java "$home" || fail "javac cannot compile"
    begin ./jdk/bin/java -Xmx64m -XX:+UseSerialGC -XX:-CreateCoredumpOnCrash -XX:ErrorFile="$PWD/hs_err" -cp "$SHARED/java" Waits
}
make_java() { "$1/bin/javac" -d . "$TOOLS/Waits.java"; }
jstack() {
    jdk
    "$(dirname "$(readlink -f "$(command -v java)")")/jstack" "$pid" 2>tool | names Waits.inner Waits.outer Waits.main
}
# Waiting threads have samples of the wall clock, too.
async_profiler() {
    local library
    case $(uname -m) in
    x86_64) library=linux-x64 ;;
    *) library=linux-arm64 ;;
    esac
    library=$(echo "$CACHE"/async-profiler-*/$library/libasyncProfiler.so)
    [ -e "$library" ] || skip "no async-profiler (scripts/setup tools)"
    jdk
    ask_async_profiler start,event=wall,interval=10ms,cstack=dwarf
    until_true 60 "samples of all threads" has_samples_or_fails
    names Waits.inner Waits.outer Waits.main ObjectMonitor::wait signal_thread_entry <stacks | sort -u
}
# jcmd takes a comma for the end of a word that has no quotes of its own.
ask_async_profiler() {
    "$(dirname "$(readlink -f "$(command -v java)")")/jcmd" "$pid" JVMTI.agent_load "$library" "\"$1\"" >tool 2>&1 || fail "$(grep -m 1 Exception tool)"
}
has_samples_or_fails() {
    ask_async_profiler "dump,collapsed,file=$PWD/stacks"
    touch stacks
    grep -q 'ERROR' out || awk '{ samples += $NF } END { exit samples < 500 }' stacks
}
jhsdb() {
    jdk
    "$(dirname "$(readlink -f "$(command -v java)")")/jhsdb" jstack --mixed --pid "$pid" 2>tool >tool.out
    names Waits.inner Waits.outer Waits.main JavaCalls::call_helper VMThread::run <tool.out | sort | uniq -c | awk '{ print $2 }'
}
hs_err() {
    jdk
    say crash
    ended
    sed -n '/^Native frames/,/^$/p' hs_err | names jni_invoke_static JavaMain JavaCalls::call_helper Unsafe_PutInt Waits.inner Waits.main Unsafe | sort -u
}
node_report() {
    need node nodejs
    private "$(readlink -f "$(command -v node)")" node
    begin ./node "$TOOLS/report.js"
    say report
    until_true 60 "the report" said 'done'
    sed -n '/"nativeStack"/,/^  ],/p' report.json | sed -n 's/.*"symbol": "\([^"]*\)".*/\1/p' | sed 's/ *\[.*//; s/+0x.*//; s/(.*//' | grep -E '^(node|v8|uv)' | head -n 12
}
# python [OPTION…]: begins a python that waits in two functions.
python() {
    [ -x /usr/bin/python3.11 ] || skip "no /usr/bin/python3.11 (Debian's python3)"
    private /usr/bin/python3.11 python3.11
    [ "$WAY" != pagecache ] || skip "the text of python3.11 holds no whole huge page of the file"
    # Its text is not much larger than a huge page.
    options=(--edges=aggressive)
    begin ./python3.11 "$@" "$TOOLS/waits.py"
}
py_spy() {
    PATH=$PATH:$(echo "$CACHE"/py-spy-*/bin)
    need py-spy "PyPI's py-spy"
    python
    py-spy dump --pid "$pid" 2>tool | names inner outer '<module>' module
}
rb_spy() {
    PATH=$PATH:$(echo "$CACHE"/rbspy-*/bin)
    need rbspy "crates.io's rbspy"
    need ruby ruby
    local library
    library=$(ldd "$(readlink -f "$(command -v ruby)")" | awk '$1 ~ /^libruby/ { print $3 }')
    [ -e "$library" ] || skip "this ruby has no libruby"
    [ "$WAY" != pagecache ] || skip "the text of libruby holds no whole huge page of the file"
    private "$(readlink -f "$library")" "$(basename "$library")"
    options=(--edges=aggressive)
    export LD_LIBRARY_PATH=$PWD
    begin ruby "$TOOLS/waits.rb"
    rbspy snapshot --pid "$pid" 2>tool | names inner outer '<main>'
}
faulthandler() {
    python -X faulthandler
    kill -ABRT "$pid"
    ended
    names inner outer '<module>' module <err
}
pmap_of() {
    need pmap procps && program
    begin ./subject
    # Parts of the text may be lines of their own.
    pmap "$pid" | awk '$3 == "r-x--" { print $4 }' | names subject | sort -u
    pmap "$pid" | awk '$3 == "r-x--" && /memfd|tiexec/ { print "a copy" }' | sort -u
}
lsof_of() {
    need lsof lsof && program
    begin ./subject
    lsof -p "$pid" 2>tool | awk '$4 == "txt" || $4 == "mem" || $4 == "DEL" { print $4, $NF }' | sed "s,$PWD/,," | grep -vE '\.so|ld-linux|locale|gconv' | sort -u
}
# Needs fixed_address. Sets $at to the run-time address of the function probed.
find_probed() { at=$((0x400000 + 0x$(sed -n 's/^offset //p' out))); }
# The name of a function from its address alone, by the file that the maps have there.
addr2line_by_maps() {
    need addr2line binutils
    fixed_address
    program
    begin ./subject
    find_probed
    local file
    file=$(while read -r range _ _ _ _ path; do [ $((0x${range%-*})) -le $at ] && [ $at -lt $((0x${range#*-})) ] && echo "$path"; done <"/proc/$pid/maps")
    addr2line -f -e "$file" "$(printf %x $at)" 2>tool | names probed
}
# A minidump of the program, and what a crash server reads in it.
make_minidump() { CARGO_TARGET_DIR=$PWD cargo build --quiet --locked --manifest-path "$TOOLS/minidump/Cargo.toml"; }
read_minidump() {
    need cargo cargo
    once minidump make_minidump || skip "cargo cannot build minidump-writer"
    fixed_address
    program
    begin ./subject
    find_probed
    breakpad_symbols
    "$SHARED/minidump/debug/minidump-of" "$pid" "$(printf %x $at)" symbols 2>tool
}
# Symbols of ./subject as Breakpad's dump_syms writes them, at the place where a server looks for the program's build ID.
breakpad_symbols() {
    local id begin size name
    id=$(readelf -n subject | sed -n 's/.*Build ID: \(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(.\{16\}\).*/\4\3\2\1\6\5\8\7\9/p' | tr a-f A-F)0
    mkdir -p "symbols/subject/$id"
    {
        echo "MODULE Linux x86_64 $id subject"
        nm --defined-only --print-size subject | grep -E '^[^ ]+ [^ ]+ [Tt] ' | while read -r begin size _ name; do
            printf 'FUNC %x %x 0 %s\n' $((0x$begin - 0x400000)) "0x$size" "$name"
        done
    } >"symbols/subject/$id/subject.sym"
}
minidump_module() {
    read_minidump | sed -n 's,^module .*/,,p'
}
minidump_walk() {
    read_minidump | names "${waiting[@]}" | uniq
}
needrestart_of() {
    need needrestart needrestart && program
    begin ./subject
    needrestart -b -l -r l -v >tool 2>&1
    if grep -q "#$pid uses obsolete" tool; then echo "needs a restart"; else echo "is up to date"; fi
}
checkrestart_of() {
    need checkrestart debian-goodies && program
    begin ./subject
    checkrestart -v >tool 2>&1 || fail "checkrestart: $(tail -n 1 tool)"
    if grep -qw "$pid" tool; then echo "needs a restart"; else echo "is up to date"; fi
}

[ "$(type -t "$1")" = function ] || fail "no case $1"
"$1"
