# What the blocks of the pages need, and what their words stand for. The marks in the pages name these functions; CONTRIBUTING.md explains
# the marks. A function that lacks something of the machine ends with status 77 and says what.
cd /root || exit
PATH=$PATH:/root/bin
exec </dev/null

# step COMMAND: runs a command of a page, for session.rs.
step() {
    printf '\036'
    eval "$1" 2>&1
    local status=$?
    settle
    printf '\037%d\n' $status
}

# Programs in the background end with the block.
trap 'jobs=$(jobs -p); [ -z "$jobs" ] || { kill $jobs; wait; } 2>/dev/null' EXIT

lacks() {
    echo "$*" >&2
    exit 77
}
needs() {
    local program
    for program; do
        command -v "$program" >/dev/null || lacks "this machine has no $program"
    done
}
# eventually COMMAND…: waits until the command succeeds.
eventually() {
    local _
    for _ in $(seq 4000); do
        if "$@"; then return 0; fi
        command sleep 0.05
    done
    echo "not in 200 s: $*" >&2
    return 1
}
quietly() { "$@" >/dev/null 2>&1; }

# A page waits for a time. A busy machine needs more than that, so these wait also for what the page waits for.
settled() {
    local exe
    exe=$(readlink "/proc/$1/exe") || return 0
    case $exe in */bash | */setsid | */tiexec) return 1 ;; esac
    ! grep -qs '^TracerPid:.*[1-9]' "/proc/$1/status"
}
settle() {
    local job
    for job in $(jobs -p); do eventually settled "$job"; done
}
sleep() {
    command sleep "$@"
    settle
}
pidof() {
    local pid
    eventually quietly command pidof "$@"
    for pid in $(command pidof "$@"); do eventually settled "$pid"; done
    command pidof "$@"
}
systemctl() {
    command systemctl "$@" || return
    # After a start, the unit beside a service attaches to it, and helpers such as the table check of Debian's mariadb end.
    has_no_job() { [ -z "$(command systemctl list-jobs --no-legend)$(command systemctl list-units --no-legend --state=active,activating 'tiexec@*' 'tiexec-*@*')" ]; }
    eventually has_no_job
    has_one_program() {
        local group
        group=/sys/fs/cgroup/systemd$(command systemctl show --value --property=ControlGroup "$1")
        [ "$(for pid in $(cat "$group/cgroup.procs"); do readlink "/proc/$pid/exe"; done | sort -u | wc -l)" = 1 ]
    }
    [ "$1" != start ] || eventually has_one_program "$2"
}
head() {
    eventually test -s "${@: -1}"
    command head "$@"
}

# busy_node: node, which works a fifth of the time. Prints its PID.
busy_node() {
    needs node
    setsid node -e 'setInterval(() => { const end = Date.now() + 20; while (Date.now() < end) JSON.stringify([...Array(999)]); }, 100)' >/dev/null 2>&1 &
    local pid=$!
    disown
    eventually settled $pid
    echo $pid
}
# old_busy_node: one that is as old as a process must be before the agent attaches to it.
old_busy_node() {
    local pid
    pid=$(busy_node) || exit
    is_old() { [ "$(ps -o etimes= -p "$pid")" -gt 10 ]; }
    eventually is_old
    echo "$pid"
}
# end_all NAME: ends all programs of that name.
end_all() {
    pkill -x "$1"
    has_none() { ! command pidof "$1" >/dev/null; }
    eventually has_none "$1"
}
# big_program NAME: a program with megabytes of text that ends at once, by this name.
big_program() {
    needs node
    mkdir -p bin
    cp "$(command -v node)" "bin/$1"
}
# service UNIT: starts a service of the machine.
service() {
    # Of an instance, the machine has the template.
    [ -e "/usr/lib/systemd/system/${1%%@*}${1//[!@]/}.service" ] || lacks "this machine has no $1.service"
    systemctl start "$1"
}
# cc_source FILE: a small program in C++.
cc_source() {
    needs clang++
    echo 'int main() { return 0; }' >"$1"
}
# large_cc_source FILE: one that takes the compiler a second or more.
large_cc_source() {
    needs clang++
    printf '#include <regex>\nint main() { return std::regex_match("a", std::regex("a")); }\n' >"$1"
}
# prometheus_here: what prometheus reads where it is started. On a busy machine a start may make a part of the copy only: 16 of 18 MiB within
# the usual deadline.
prometheus_here() {
    needs prometheus
    echo 'scrape_configs: []' >prometheus.yml
    mkdir -p /etc/tiexec
    echo deadline=1m >/etc/tiexec/config
}
# all_stored COMMAND…: until the store has all that the command would build an image of. A start on a busy machine does not wait for one.
all_stored() {
    has_all() { tiexec --report "$@" 2>&1 | { ! grep not_stored; } >/dev/null; }
    eventually has_all "$@"
}
# make_here: what make builds.
make_here() {
    needs make
    printf 'all:\n\ttrue\n' >Makefile
}
# pg_here: an empty cluster of PostgreSQL.
pg_here() {
    needs postgres
    mkdir pg
    chown postgres: pg
    quietly runuser -u postgres -- "$(dirname "$(readlink -f "$(command -v postgres)")")/initdb" -D pg
}
# busy_mariadbd: the server of mariadb.service, which answers queries. Prints its PID.
busy_mariadbd() {
    service mariadb
    setsid sh -c 'while :; do mariadb -e "select count(*) from mysql.help_topic a, mysql.help_topic b where a.name < b.name"; done' >/dev/null 2>&1 &
    disown
    pidof mariadbd
}
# count_queries: a script that counts the queries of MariaDB.
count_queries() {
    busy_mariadbd
    printf '#!/bin/sh\n%s\n' "mariadb -BNe \"show global status like 'Questions'\"" >count-queries
    chmod +x count-queries
}
# go_server PROGRAM: a server in Go.
go_server() {
    needs go
    printf 'package main\n\nimport (\n\t"net/http"\n\t"os"\n)\n\nfunc main() {\n\tif len(os.Args) > 1 {\n\t\thttp.ListenAndServe(os.Args[1], nil)\n\t}\n}\n' >"$1.go"
    quietly go build -o "$1" "$1.go"
}
# work_java: a program for the JVM that works for minutes.
work_java() {
    needs java
    [ -e "$(dirname "$(readlink -f "$(command -v java)")")/../lib/libjli.so" ] || lacks "this machine has no JVM"
    cat >Work.java <<'JAVA'
public class Work {
    public static void main(String[] arguments) {
        long sum = 0;
        for (long end = System.nanoTime() + 200_000_000_000L; System.nanoTime() < end; )
            for (String word : "a b c d e f g".repeat(99).split(" ")) sum += word.hashCode();
        System.out.println(sum);
    }
}
JAVA
}
# busy_java: the JVM at work. Prints its PID.
busy_java() {
    work_java
    setsid java Work.java >/dev/null 2>&1 &
    local pid=$!
    disown
    # It runs what it has compiled.
    command sleep 10
    echo $pid
}
# agent_unit: the unit of the agent, as the packages install it.
agent_unit() {
    cp /opt/tiexecd.service /etc/systemd/system
    systemctl daemon-reload
}
# attached_by_agent: waits until the agent has attached to a node.
attached_by_agent() {
    is_attached() { tiexecctl status | grep -q '/usr/bin/node .*ok'; }
    eventually is_attached
}
# cc1plus_here HEADER: the compiler proper of g++, and a preprocessed source with that header.
cc1plus_here() {
    needs g++
    cp "$(g++ -print-prog-name=cc1plus)" cc1plus
    printf '#include <%s>\nint main() { return 0; }\n' "$1" >b.cc
    g++ -std=c++17 -E b.cc >b.ii
}
app_js() {
    needs node
    echo 'setInterval(() => { for (let i = 0; i < 50; i++) JSON.stringify([...Array(9999)].map((_, i) => `${i}`)); }, 10)' >app.js
}
app_py() {
    needs python3
    echo 'print(sum(range(9)))' >app.py
}
