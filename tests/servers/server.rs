//! What all kinds of servers have in common.

use std::path::Path;

use rustix::process::Pid;

use super::process::Process;

/// A server: a private one, the one of this test binary, or one that the environment names.
#[derive(Debug)]
pub struct Server {
    url: String,
    process: Option<Process>,
}

impl Server {
    pub(super) fn started(url: String, process: Process) -> Self {
        let process = Some(process);
        Self { url, process }
    }

    pub(super) fn named(url: String) -> Self {
        Self { url, process: None }
    }

    /// Of the database that every such server has, as the user who may do anything; without password and TLS if the
    /// server was started here.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// On 127.0.0.1.
    ///
    /// # Panics
    ///
    /// Panics if the environment names the server, as do all that follow.
    pub fn port(&self) -> u16 {
        self.process().port()
    }

    /// Where its data are, and in the file `log` what it wrote.
    pub fn directory(&self) -> &Path {
        self.process().directory()
    }

    /// Of its first process.
    ///
    /// # Panics
    ///
    /// Panics after a kill, too.
    pub fn process_id(&self) -> Pid {
        self.process().pid()
    }

    /// Whether it was neither killed nor frozen.
    pub fn runs(&self) -> bool {
        self.process().runs()
    }

    /// Stops all of its processes where they are: connections stay open, and nothing answers.
    pub fn freeze(&self) {
        self.process().freeze();
    }

    pub fn thaw(&self) {
        self.process().thaw();
    }

    /// `kill -9` for all of its processes. Blocks the thread until they ended.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Starts it again after a kill, on the same port and data. Blocks the thread until it serves.
    pub fn restart(&self) {
        self.process().restart();
    }

    fn process(&self) -> &Process {
        let process = self.process.as_ref();
        process.expect("a server that was started here")
    }
}
