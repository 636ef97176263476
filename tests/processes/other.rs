//! The other process: this very program once more, in which one test runs that is none.
//!
//! It does what it is told to over its input, and tells over its error output what came of it.

use std::{ffi::OsStr, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin},
    process::{Child, ChildStderr, ChildStdin, Command},
    time::timeout,
};

use crate::support::Answer;

/// Far longer than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(60);

const MARK: &str = "other process: ";

/// The child. It is killed when this is dropped.
pub struct OtherProcess {
    child: Child,
    orders: ChildStdin,
    words: Lines<BufReader<ChildStderr>>,
}

impl OtherProcess {
    /// Starts this test, and waits until it is ready.
    pub async fn start<'a>(
        test: &str,
        environment: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
    ) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", test, "--nocapture"])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let orders = child.stdin.take().expect("its input");
        let words = child.stderr.take().expect("its error output");
        let words = BufReader::new(words).lines();
        let mut other = Self {
            child,
            orders,
            words,
        };
        assert_eq!(other.hears().await, "ready");
        other
    }

    pub async fn tell(&mut self, order: &str) {
        let line = format!("{order}\n");
        self.orders.write_all(line.as_bytes()).await.expect("told");
    }

    /// Its next word; all else that it writes, such as the message of a panic, is passed on.
    pub async fn hears(&mut self) -> String {
        loop {
            let line = timeout(LIMIT, self.words.next_line()).await;
            let line = line.expect("a word in time").expect("its error output");
            let line = line.expect("a word before its end");
            match line.strip_prefix(MARK) {
                Some(word) => return word.to_owned(),
                None => eprintln!("{line}"),
            }
        }
    }

    pub async fn hears_answer(&mut self) -> String {
        let word = self.hears().await;
        word.strip_prefix("answer ").expect(&word).to_owned()
    }

    /// `kill -9` on Unix, and waits for the end.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("a process to kill");
    }
}

/// What the child is told. It ends with its parent.
pub fn orders() -> Lines<BufReader<Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

/// To the parent. Not to the output, where the test harness writes.
pub fn tell(word: &str) {
    eprintln!("{MARK}{word}");
}

pub fn told(answer: &Answer) -> String {
    let (status, rejection) = (answer.status().as_u16(), answer.rejection());
    let text = answer.text().replace('\n', " ");
    format!("{status} {rejection:?} {} {text}", answer.is_replay())
}
