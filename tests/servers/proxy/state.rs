//! What the threads of a proxy share.

use std::{
    collections::HashMap,
    io,
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::fault::{Fault, Rule};

#[derive(Debug, Default)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub struct State {
    pub rules: Vec<Rule>,
    pub statements: Vec<Arc<str>>,
    pub round_trips: usize,
    /// Nothing gets through, in either direction.
    pub hangs: bool,
    /// How often all that waited was let go.
    pub resumed: u64,
    /// The connections that were not cut.
    pub links: HashMap<u64, Ends>,
    pub last_link: u64,
}

/// The two sockets of a connection, and what is under way on it.
#[derive(Debug)]
pub struct Ends {
    pub client: TcpStream,
    /// None until it is connected.
    pub server: Option<TcpStream>,
    /// How many answers are due, that to a handshake included.
    pub due: usize,
    /// The answers that are kept from the client.
    pub withheld: Option<Vec<u8>>,
    /// Whether a fault holds it: then the end of the server's side is not passed on.
    pub is_held: bool,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and lets all who wait look at it.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Changes what is under way on a connection.
    pub fn change_link<T>(&self, link: u64, change: impl FnOnce(&mut Ends) -> T) -> io::Result<T> {
        self.change(|state| state.links.get_mut(&link).map(change))
            .ok_or_else(cut)
    }

    /// Waits until this holds. An error if the connection is cut meanwhile.
    pub fn wait(&self, link: u64, ready: impl Fn(&State, &Ends) -> bool) -> io::Result<()> {
        let waits = |state: &mut State| {
            let ends = state.links.get(&link);
            ends.is_some_and(|ends| !ready(state, ends))
        };
        let state = self.changed.wait_while(self.lock(), waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.links.get(&link).map(|_| ()).ok_or_else(cut)
    }

    /// Waits for this long. An error if the connection is cut meanwhile.
    pub fn pause(&self, link: u64, time: Duration) -> io::Result<()> {
        let is_there = |state: &mut State| state.links.contains_key(&link);
        let waited = self.changed.wait_timeout_while(self.lock(), time, is_there);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.links.get(&link).map(|_| ()).ok_or_else(cut)
    }

    pub fn cut(&self, link: u64) {
        let ends = self.change(|state| state.links.remove(&link));
        drop(ends);
    }
}

impl State {
    /// The fault that a request meets which executes these.
    pub fn meet(&mut self, executes: &[Arc<str>]) -> Option<(Fault, watch::Sender<usize>)> {
        executes
            .iter()
            .find_map(|sql| self.rules.iter_mut().find_map(|rule| rule.meet(sql)))
    }
}

impl Drop for Ends {
    /// Also wakes the threads that read from them.
    fn drop(&mut self) {
        for end in [Some(&self.client), self.server.as_ref()]
            .into_iter()
            .flatten()
        {
            // The other side may have been faster.
            end.shutdown(Shutdown::Both).unwrap_or_default();
        }
    }
}

pub fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was cut")
}
