//! Where it listens, and what a test can do with it.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{fault::Fault, link::Link, port::Port, request::Request};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A proxy to a server. All of its connections are closed when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    upstream: SocketAddr,
    shared: Arc<Shared>,
    /// While it listens.
    accepts: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    pub async fn start(upstream: SocketAddr) -> Self {
        let proxy = Self {
            port: Port::free(),
            upstream,
            shared: Arc::default(),
            accepts: Mutex::default(),
        };
        proxy.accept().await;
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port.number()).into()
    }

    /// What becomes of the next requests whose first line starts so, one after the other. All after these pass. A script for the
    /// same start takes the place of the one before.
    pub fn script(&self, start: &str, faults: impl IntoIterator<Item = Fault>) {
        let mut scripts = self.shared.scripts();
        scripts.retain(|(other, _)| other != start);
        scripts.push((start.to_owned(), faults.into_iter().collect()));
    }

    /// The requests whose first line starts so, as they came; also what the server never saw.
    pub fn requests(&self, start: &str) -> Vec<Request> {
        let requests = self.shared.requests.borrow();
        let requests = requests.iter().filter(|request| request.is(start));
        requests.cloned().collect()
    }

    /// Waits until so many requests came.
    ///
    /// # Panics
    ///
    /// Panics if that doesn't come about.
    pub async fn received(&self, count: usize) {
        let mut requests = self.shared.requests.subscribe();
        let received = timeout(LIMIT, requests.wait_for(|requests| requests.len() >= count)).await;
        assert!(matches!(received, Ok(Ok(_))), "so many didn't come");
    }

    /// Waits until so many requests met a fault: their fate at the server is decided, or they or their answers wait here.
    ///
    /// # Panics
    ///
    /// Panics if that doesn't come about.
    pub async fn struck(&self, times: usize) {
        let mut strikes = self.shared.strikes.subscribe();
        let struck = timeout(LIMIT, strikes.wait_for(|count| *count >= times)).await;
        assert!(matches!(struck, Ok(Ok(_))), "it didn't strike so often");
    }

    /// Lets go all that waits.
    pub fn release(&self) {
        self.shared.releases.send_modify(|count| *count += 1);
    }

    /// Closes all connections and refuses new ones, until [`accept`](Self::accept).
    pub async fn refuse(&self) {
        let accepts = self.accepts().take();
        if let Some(accepts) = accepts {
            accepts.abort();
            let ended = accepts.await;
            assert!(ended.is_err_and(|error| error.is_cancelled()));
        }
    }

    /// Listens again, on the same port.
    pub async fn accept(&self) {
        let listener = TcpListener::bind(self.address()).await;
        let listener = listener.expect("a held port");
        let (upstream, shared) = (self.upstream, Arc::clone(&self.shared));
        let accepts = tokio::spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let accepted = listener.accept().await;
                let (client, _) = accepted.expect("a listener that goes on");
                links.spawn(Link::run(client, upstream, Arc::clone(&shared)));
                // Whatever ended it, the connection has ended.
                while links.try_join_next().is_some() {}
            }
        });
        let previous = self.accepts().replace(accepts);
        assert!(previous.is_none(), "it listened already");
    }

    fn accepts(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.accepts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(accepts) = self.accepts().take() {
            accepts.abort();
        }
    }
}

/// What the connections share.
#[derive(Debug, Default)]
pub struct Shared {
    scripts: Mutex<Scripts>,
    requests: watch::Sender<Vec<Request>>,
    strikes: watch::Sender<usize>,
    releases: watch::Sender<usize>,
}

/// By the start of the requests.
type Scripts = Vec<(String, VecDeque<Fault>)>;

impl Shared {
    /// What the request of this head meets.
    pub fn meet(&self, head: &[u8]) -> Fault {
        let mut scripts = self.scripts();
        let script = scripts
            .iter_mut()
            .find(|(start, _)| head.starts_with(start.as_bytes()));
        let fault = script.and_then(|(_, faults)| faults.pop_front());
        fault.unwrap_or(Fault::Pass)
    }

    pub fn keep(&self, request: Request) {
        self.requests.send_modify(|requests| requests.push(request));
    }

    /// Counted before the client can know of it.
    pub fn strike(&self) {
        self.strikes.send_modify(|count| *count += 1);
    }

    /// Waits until all that waits is let go.
    pub async fn hold(&self) {
        let mut releases = self.releases.subscribe();
        self.strike();
        let released = releases.changed().await;
        released.expect("a proxy that holds the other end");
    }

    fn scripts(&self) -> MutexGuard<'_, Scripts> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
