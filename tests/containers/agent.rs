//! The agent runs in a container with the rights that the chart gives it, as on a node of Kubernetes. It treats another
//! user's program in another container, whose memory cgroup is charged.

use std::path::Path;

use support::podman::{NEEDS, is_there};
use support::{Kind, Public, Run, program, require, tiexecd};

const CHART: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/tiexec/templates/daemonset.yaml");

/// The script of process 1 of a PID namespace, which makes both containers. Each container has its own cgroup
/// namespace. The last line of output has the bytes of huge text, and the bytes of shared memory that the container was
/// charged.
const NODE: &str = r#"cd "$1"
    container() {
        podman --root "$PWD/root" --runroot "$PWD/run" --tmpdir "$PWD/tmp" --runtime=runc --cgroup-manager=cgroupfs \
            --events-backend=none run --rm --network=none --log-driver=none --ulimit=nofile=1024:1024 \
            --ulimit=nproc=4096:4096 --cgroup-parent="/$group" --cgroupns=private --cap-drop=all --read-only \
            --read-only-tmpfs=false "$@" <"${input:-/dev/null}" &
    }
    group=$2 programs=$3 rights=$4
    mkfifo pipe
    exec 3<>pipe
    input=pipe
    container --pidfile="$PWD/pod" --interactive --user=1000:1000 --security-opt=no-new-privileges --memory=512m \
        --rootfs /:O "$PWD/hold" 7
    input=
    container --pidfile="$PWD/agent" --pid=host --cap-add="$rights" --security-opt=seccomp=unconfined \
        --volume="$PWD/conf:/etc/tiexec/conf.d:ro" --volume="$PWD/sockets:/run/tiexec" \
        --volume="$PWD/state:/var/lib/tiexec" --volume=/sys/fs/cgroup:/sys/fs/cgroup --volume="$programs:$programs:ro" \
        --rootfs /:O "$programs/tiexecd" 2>said
    for try in $(seq 300); do
        ! grep -q 'rule pods)' said || break
        sleep 0.1
    done
    cat said
    pod=$(cat pod)
    huge=$(awk '/^[0-9a-f]+-[0-9a-f]+ / { text = $2 ~ /x/ } text && /(Shmem|File)PmdMapped:/ { sum += $2 }
        END { print sum * 1024 }' "/proc/$pod/smaps")
    memory=$(sed -n 's/^[0-9]*:memory://p' "/proc/$pod/cgroup")
    stat=/sys/fs/cgroup/memory$memory/memory.stat
    [ -n "$memory" ] || stat=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pod/cgroup")/memory.stat
    charged=$(sed -n 's/^shmem //p' "$stat")
    kill "$(cat agent)" && kill -KILL "$pod"
    wait
    echo "figures $huge $charged""#;

/// The capabilities that the chart gives the agent.
fn rights() -> String {
    let chart = std::fs::read_to_string(CHART).expect("the chart");
    let (_, rest) = chart.split_once("add:").expect("capabilities");
    let (list, _) = rest.split_once("resources:").expect("what comes next");
    let items = list.lines().filter_map(|line| line.trim().strip_prefix("- "));
    items.collect::<Vec<_>>().join(",")
}

/// Removes a cgroup and its descendants, if it exists, because podman leaves its cgroup behind.
fn remove_cgroups(group: &Path) {
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.for_each(|entry| remove_cgroups(&entry.path()));
    let _none_here = std::fs::remove_dir(group);
}

#[test]
fn another_users_program_in_another_container() {
    require!(is_there(), "{NEEDS}");
    let public = Public::new();
    for name in ["conf", "sockets", "state"] {
        std::fs::create_dir(public.path().join(name)).expect("a directory");
        support::chmod(&public.path().join(name), 0o755);
    }
    public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let group = format!("tiexec-test-{}", std::process::id());
    let rule = format!(
        "[agent]\nmax-memory-pressure = 100\n[[rule]]\nname = \"pods\"\ncgroup = \"/{group}/**\"\nuser = 1000\n\
         action = \"attach\"\ncanary = \"off\"\nbacking = \"image\"\nmin-age = \"1s\"\n"
    );
    support::write_program(&public.path().join("conf/rules.toml"), rule.as_bytes(), 0o644);
    let programs = tiexecd().parent().expect("a directory").to_owned();
    let own =
        ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", NODE, "sh"];
    let run = Run::new("unshare", own).plain().with_arg(public.path()).with_arg(&*group);
    let done = run.with_arg(programs).with_arg(rights()).output();
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(top).expect("cgroups").flatten();
    for hierarchy in hierarchies.map(|entry| entry.path()).chain([top.to_owned()]) {
        remove_cgroups(&hierarchy.join(&group));
    }
    let out = done.out();
    let figures = out.lines().find_map(|line| line.strip_prefix("figures "));
    let figures: Vec<u64> =
        figures.unwrap_or_default().split(' ').filter_map(|figure| figure.parse().ok()).collect();
    let [huge, charged] = figures[..] else { panic!("no figures: {done}") };
    assert!(huge >= 2 << 20, "its text is huge: {done}");
    assert!(charged >= huge, "its container pays: {done}");
}
