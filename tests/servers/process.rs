//! A server process, and the shell that ends it.
//!
//! The server is the child of a small shell script that reads orders from a pipe. The other end is held by this process
//! alone. When it closes, because the server is dropped or because this process ended in whatever way (a static is never
//! dropped, and nothing runs after SIGKILL), the script ends the server and removes its directory.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{place::user_instead_of_root, port::Port};

/// Far longer than any start takes.
const LIMIT: Duration = Duration::from_secs(60);
/// Ctrl-C and the like are for the tests; the script ends after them. Each order is answered by a line.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
umask 077
# mariadb-install-db takes no blanks.
case $PLACE in *[[:space:]]*) PLACE=/tmp ;; esac
directory=$(mktemp -d "$PLACE/$NAME.XXXXXX" || mktemp -d "/tmp/$NAME.XXXXXX") || exit
cd "$directory" && mkdir tmp || exit
# A MariaDB that starts removes what others have in theirs.
export TMPDIR="$directory/tmp"
echo "$directory"
pid=
while read -r order PORT; do
    case $order in
    install) eval "$INSTALL" >>log 2>&1 </dev/null; echo $? ;;
    run) export PORT; eval "$RUN" >>log 2>&1 </dev/null & pid=$!; echo $pid ;;
    wait) wait $pid; echo $?; pid= ;;
    esac
done
if [ -n "$pid" ]; then
    kill -CONT $pid
    kill -$STOP $pid
    wait $pid
fi
cd /
rm -rf "$directory"
"#;

/// What makes a server of a program. The shell code runs in the server's directory.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    /// As whom it runs if the tests run as root.
    pub user: &'static str,
    pub directories: Vec<PathBuf>,
    /// Prepares the directory.
    pub install: &'static str,
    /// Starts the server, on `$PORT`.
    pub run: &'static str,
    /// The signal that ends it at once, with all of its processes.
    pub stop: &'static str,
    /// The lines of its configuration, for `install` and `run`.
    pub settings: String,
    /// A port for it.
    pub port: fn() -> Port,
    /// Whether the server on the port is this one, and serves.
    pub is_ready: fn(&Process) -> bool,
}

/// A server that runs, is frozen, or was killed and may run again.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    directory: PathBuf,
    port: Port,
    is_ready: fn(&Process) -> bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    script: Child,
    /// Closed when this is dropped.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The server's first process; none after a kill.
    pid: Option<Pid>,
}

impl Process {
    /// Starts a server with a directory of its own, and waits until it serves.
    pub fn start(program: &Program) -> Self {
        let mut state = State::start(program);
        let directory = PathBuf::from(state.answer());
        let process = Self {
            name: program.name,
            directory,
            port: (program.port)(),
            is_ready: program.is_ready,
            state: Mutex::new(state),
        };
        let installed = process.state().order("install");
        assert_eq!(installed, "0", "{}", process.log());
        assert!(process.run(), "{}", process.log());
        process
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server's first process.
    ///
    /// # Panics
    ///
    /// Panics after a kill.
    pub fn pid(&self) -> Pid {
        self.state().pid.expect("a server that was not killed")
    }

    /// Whether it was neither killed nor frozen.
    pub fn runs(&self) -> bool {
        self.state().pid.is_some_and(|pid| !stopped(pid))
    }

    /// Stops all of its processes where they are: connections stay open, and nothing answers.
    pub fn freeze(&self) {
        let pid = self.pid();
        // The first process alone starts others, so that after this there are no new ones.
        signal(pid, Signal::STOP);
        until("it stopped", || stopped(pid));
        let children = children(pid);
        for child in &children {
            signal(*child, Signal::STOP);
        }
        until("all stopped", || {
            children.iter().all(|child| stopped(*child))
        });
    }

    pub fn thaw(&self) {
        let pid = self.pid();
        for child in children(pid) {
            signal(child, Signal::CONT);
        }
        signal(pid, Signal::CONT);
    }

    /// `kill -9` for all of its processes, and waits for their end.
    pub fn kill(&self) {
        self.freeze();
        let pid = self.pid();
        let children = children(pid);
        for process in children.iter().chain([&pid]) {
            signal(*process, Signal::KILL);
        }
        let mut state = self.state();
        state.order("wait");
        state.pid = None;
        drop(state);
        for child in children {
            // Whoever inherited it may be slow to ask for its end.
            until("its end", || ended(child));
        }
    }

    /// Starts it again after a kill, on the same port and data, and waits until it serves.
    pub fn restart(&self) {
        assert!(self.state().pid.is_none(), "a server that was killed");
        assert!(self.run(), "{}", self.log());
    }

    /// Whether the server came up.
    fn run(&self) -> bool {
        let mut state = self.state();
        let pid = state.order(&format!("run {}", self.port()));
        let pid = pid.parse().ok().and_then(Pid::from_raw);
        let pid = pid.expect("the number of a process");
        state.pid = Some(pid);
        drop(state);
        let mut serves = false;
        until("a server that serves", || {
            serves = (self.is_ready)(self);
            serves || ended(pid)
        });
        if !serves {
            let mut state = self.state();
            state.order("wait");
            state.pid = None;
        }
        serves
    }

    /// What the server wrote, for the message of a failure.
    fn log(&self) -> String {
        let log = std::fs::read(self.directory.join("log")).unwrap_or_default();
        format!("{} failed: {}", self.name, String::from_utf8_lossy(&log))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start(program: &Program) -> Self {
        let mut script = Command::new("/bin/sh");
        let own = std::env::var_os("PATH").unwrap_or_default();
        let directories = program.directories.iter().cloned();
        let path = std::env::join_paths(directories.chain(std::env::split_paths(&own)));
        script
            .args(["-c", SCRIPT])
            .env_clear()
            .env("PATH", path.expect("a search path"))
            .env("LC_ALL", "C")
            .env("PLACE", std::env::temp_dir())
            .env("NAME", program.name)
            .env("INSTALL", program.install)
            .env("RUN", program.run)
            .env("STOP", program.stop)
            .env("SETTINGS", &program.settings)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some((user, group)) = user_instead_of_root(program.user) {
            script.uid(user).gid(group);
        }
        let mut script = script.spawn().expect("a shell");
        let orders = script.stdin.take();
        let answers = script.stdout.take().expect("its output");
        Self {
            script,
            orders,
            answers: BufReader::new(answers),
            pid: None,
        }
    }

    fn order(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().expect("open until the drop");
        writeln!(orders, "{order}").expect("a shell that listens");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert!(line.ends_with('\n'), "the shell ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.state().pid.is_some() {
            // A frozen process would end only after some seconds.
            self.thaw();
        }
        let mut state = self.state();
        drop(state.orders.take());
        let ended = state.script.wait();
        if !std::thread::panicking() {
            ended.expect("the end of the shell");
        }
    }
}

/// Waits until this is so.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited too long for {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// It may have ended by itself.
fn signal(process: Pid, signal: Signal) {
    let sent = kill_process(process, signal);
    assert!(
        matches!(sent, Ok(()) | Err(rustix::io::Errno::SRCH)),
        "{sent:?}"
    );
}

/// Postgres has a process per connection, each in a session of its own: no process group holds them all.
fn children(parent: Pid) -> Vec<Pid> {
    let processes = Path::new("/proc").read_dir().expect("Linux");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw)
        .filter(|pid| status(*pid).is_some_and(|(_, of)| of == parent.as_raw_nonzero().get()))
        .collect()
}

fn stopped(process: Pid) -> bool {
    ended(process) || status(process).is_some_and(|(state, _)| state == 'T')
}

/// Also one that nobody waited for yet.
fn ended(process: Pid) -> bool {
    status(process).is_none_or(|(state, _)| state == 'Z')
}

/// A process's state and its parent.
fn status(process: Pid) -> Option<(char, i32)> {
    let file = format!("/proc/{}/stat", process.as_raw_nonzero());
    let text = std::fs::read_to_string(file).ok()?;
    // The name before may hold anything.
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
