//! Entry scripts of databases. Root's part gives the data to a user. The user's part makes the database at the first
//! start, with a temporary server. Finally the server itself runs as process 1.
//!
//! The scripts here do the same as the images' own scripts, with Debian's programs. `TIEXEC_ENTRY_SCRIPTS` can name a
//! directory with the images' own scripts, the files `mariadb`, `postgres` and `redis`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::child::eventually;
use support::podman::{Container, NEEDS, is_there};
use support::smaps::status_field;
use support::{Public, installed, require, tiexec};

use crate::becomes_huge_while;

/// A database in a container.
struct Database {
    name: &'static str,
    user: &'static str,
    server: &'static str,
    /// The script; `$DATA` is the directory.
    script: &'static str,
    /// The variables that the image's own script needs.
    environment: &'static [&'static str],
    /// More words for the server; `@` stands for the directory.
    args: &'static [&'static str],
    /// The client's command for the question; `@` stands for the directory.
    ask: &'static [&'static str],
    answer: &'static str,
    /// True if its text fills a huge page.
    is_large: bool,
}

const MARIADB: Database = Database {
    name: "mariadb",
    user: "mysql",
    server: "mariadbd",
    script: r#"
        if [ ! -d "$DATA/mysql" ]; then
            mariadb-install-db --no-defaults --datadir="$DATA" --auth-root-authentication-method=normal >/tmp/initdb-said
            "$@" --skip-networking &
            until mariadb --no-defaults --socket="$DATA/sock" -u root -e 'create database first'; do
                sleep 0.2
            done
            kill $!
            wait $!
        fi"#,
    environment: &["MARIADB_ALLOW_EMPTY_ROOT_PASSWORD=1"],
    args: &["--no-defaults", "--datadir=@", "--socket=@/sock", "--pid-file=@/pid"],
    ask: &[
        "mariadb",
        "--no-defaults",
        "--socket=@/sock",
        "-u",
        "root",
        "-N",
        "-e",
        "select 41 + 1",
    ],
    answer: "42",
    is_large: true,
};

const POSTGRES: Database = Database {
    name: "postgres",
    user: "postgres",
    server: "postgres",
    script: r#"
        if [ ! -s "$DATA/PG_VERSION" ]; then
            initdb --pgdata="$DATA" --auth=trust >/tmp/initdb-said
            pg_ctl -D "$DATA" -o "-c listen_addresses=" -w start
            psql -c 'create database first'
            pg_ctl -D "$DATA" -m fast -w stop
        fi"#,
    environment: &["POSTGRES_HOST_AUTH_METHOD=trust"],
    args: &["-D", "@", "-c", "listen_addresses="],
    ask: &["psql", "-h", "@/../sockets", "-U", "postgres", "-Atc", "select 41 + 1"],
    answer: "42",
    is_large: true,
};

const REDIS: Database = Database {
    name: "redis",
    user: "redis",
    server: "redis-server",
    script: "",
    environment: &[],
    args: &["--port", "0", "--unixsocket", "@/sock", "--dir", "@"],
    ask: &["redis-cli", "-s", "@/sock", "ping"],
    answer: "PONG",
    is_large: false,
};

impl Database {
    /// Writes the entry script, or the image's own script if there is one.
    fn entry(&self, public: &Public) -> PathBuf {
        let own = format!(
            "#!/bin/bash\nset -e\nif [ \"$(id -u)\" = 0 ]; then\n    chown -R {user} \"$DATA\"\n    exec gosu {user} \"$0\" \"$@\"\nfi\n{}\n\
             exec \"$@\"\n",
            self.script,
            user = self.user,
        );
        let images = std::env::var_os("TIEXEC_ENTRY_SCRIPTS").map(PathBuf::from);
        let script = images.map_or(own.into_bytes(), |images| {
            std::fs::read(images.join(self.name)).expect("the image's own script")
        });
        let entry = public.path().join("docker-entrypoint.sh");
        support::write_program(&entry, &script, 0o755);
        entry
    }

    fn start(&self, entry: &Path, data: &Path) -> Container {
        let with_data = |word: &&str| with_directory(word, data);
        let environment = self.environment.iter().map(with_data);
        let places = std::env::var("PATH").expect("a path");
        let own = [
            format!("DATA={0}", data.display()),
            format!("PGDATA={0}", data.display()),
            format!("PATH={places}:{}", postgres_programs().display()),
        ];
        let mut podman: Vec<String> =
            environment.chain(own).map(|pair| format!("--env={pair}")).collect();
        // PostgreSQL's own script asks its temporary server there.
        podman.push(format!("--volume={}/../sockets:/var/run/postgresql", data.display()));
        // Some of the images' own scripts read this directory.
        podman.push("--tmpfs=/docker-entrypoint-initdb.d".to_owned());
        podman.push(format!("--workdir={}", data.display()));
        let podman: Vec<&str> = podman.iter().map(String::as_str).collect();
        let words: Vec<String> = self.args.iter().map(with_data).collect();
        let command =
            [tiexec().as_os_str(), "--".as_ref(), entry.as_os_str(), self.server.as_ref()];
        let command: Vec<&OsStr> =
            command.into_iter().chain(words.iter().map(OsStr::new)).collect();
        let mounts = [tiexec().parent().expect("a directory"), data.parent().expect("a directory")];
        Container::start(&mounts, &podman, &command)
    }

    fn answers(&self, data: &Path) -> bool {
        let words: Vec<String> = self.ask.iter().map(|word| with_directory(word, data)).collect();
        let done = Command::new(&words[0]).args(&words[1..]).output();
        done.is_ok_and(|done| String::from_utf8_lossy(&done.stdout).trim() == self.answer)
    }

    /// Asserts that the server has become process 1, as its user, and answers.
    fn serves(&self, container: &Container, data: &Path) {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", container.pid));
        eventually("the server is process 1", || {
            file("comm").is_ok_and(|comm| comm.trim_end() == self.server)
        });
        eventually("it answers", || self.answers(data));
        let uid = Command::new("id").args(["-u", self.user]).output().expect("id");
        let uid = String::from_utf8(uid.stdout).expect("UTF-8");
        let ids = status_field(container.pid, "Uid").expect("it runs");
        assert_eq!(ids.split_whitespace().next(), Some(uid.trim()));
    }

    /// The first start makes the database, which may take longer than the watch of the start. The second start finds
    /// the database.
    fn starts_twice(&self) {
        require!(is_there(), "{NEEDS}");
        let client = installed(self.ask[0]);
        require!(client.is_some() && server_is_there(self.server), "no {}", self.server);
        let public = Public::new();
        let (entry, data) = (self.entry(&public), public.path().join("data"));
        for directory in [&data, &public.path().join("sockets")] {
            std::fs::create_dir(directory).expect("a directory");
            support::chmod(directory, 0o777);
        }
        self.serves(&self.start(&entry, &data), &data);
        let again = self.start(&entry, &data);
        self.serves(&again, &data);
        if self.is_large {
            // A server that has used no 50 ms of a processor is looked at only after a minute, so it is kept at work.
            becomes_huge_while(&again, self.server, 2 << 20, || assert!(self.answers(&data)));
        }
    }
}

fn with_directory(word: &str, data: &Path) -> String {
    word.replace('@', data.to_str().expect("UTF-8"))
}

/// The directory of Debian's programs of PostgreSQL's server, which is in no user's path.
fn postgres_programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    newest.unwrap_or_else(|| PathBuf::from("/usr/lib/postgresql"))
}

fn server_is_there(name: &str) -> bool {
    installed(name).is_some()
        || Path::new("/usr/sbin").join(name).exists()
        || postgres_programs().join(name).exists()
}

#[test]
fn of_mariadb() {
    MARIADB.starts_twice();
}

#[test]
fn of_postgres() {
    POSTGRES.starts_twice();
}

#[test]
fn of_redis() {
    REDIS.starts_twice();
}
