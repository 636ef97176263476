use std::{
    net::SocketAddr,
    process::{ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::Database;
use crate::server::{Caller, LIMIT, example, listening};

/// The running example. It is killed when this is dropped, and ends by itself if this process is killed: its standard input
/// closes.
pub struct App {
    pub address: SocketAddr,
    process: Child,
}

impl App {
    pub async fn start(database: &Database) -> Self {
        Self::start_with(database, &[]).await
    }

    /// With these environment variables.
    pub async fn start_with(database: &Database, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(example("payments"));
        command.arg("child");
        for variable in [
            "LEASE",
            "PAYMENTS_CRASH",
            "RUN_LIMIT",
            "STORE_URL",
            "TAKEOVER",
        ] {
            command.env_remove(variable);
        }
        command
            .env("ADDR", "127.0.0.1:0")
            .env("DATABASE_URL", database.url())
            .envs(environment.iter().copied());
        Self::of(command).await
    }

    /// Another program, which tells where it listens and ends with its input.
    pub async fn of(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let address = listening(&mut process).await;
        Self { address, process }
    }

    /// Of its process, which runs.
    pub fn id(&self) -> u32 {
        self.process.id().expect("a running process")
    }

    /// `kill -9`, and waits until it is dead.
    pub async fn kill(&mut self) {
        let ended = self.process.try_wait().expect("its status");
        assert_eq!(ended, None, "it had ended by itself");
        self.process.kill().await.expect("a dead process");
    }

    pub fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.id().cast_signed()).expect("a process id");
        kill_process(id, signal).expect("a signal that is sent");
    }

    pub fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Waits until it has ended. Its input stays open until then, though `wait` alone would close it.
    pub async fn ended(mut self) -> ExitStatus {
        let _input = self.process.stdin.take();
        timeout(LIMIT, self.process.wait())
            .await
            .expect("an app that ends")
            .expect("its status")
    }

    pub fn client(&self) -> Caller {
        Caller::new(self.address)
    }
}
