//! The proxy itself: where it listens, and what a test can do with it.

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use super::{
    super::{port::Port, url},
    fault::{Rule, Strikes},
    link::Link,
    protocol::Protocol,
    state::Shared,
};

/// A proxy to a database server. All of its connections are cut when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    upstream: String,
    port: Port,
    protocol: fn() -> Arc<dyn Protocol>,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// The thread that accepts connections, while they are accepted.
#[derive(Debug)]
struct Acceptor {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// A proxy to the server of this database.
    pub fn start(database: &str) -> Self {
        let port = Port::free();
        let proxy = Self {
            url: url::with_address(database, &format!("127.0.0.1:{}", port.number())),
            upstream: url::address(database).to_owned(),
            port,
            protocol: protocol_of(database),
            shared: Arc::default(),
            acceptor: Mutex::default(),
        };
        proxy.accept();
        proxy
    }

    /// Of the same database, through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Lets statements fail by this rule, also on connections that are open already. The first rule that holds counts.
    pub fn inject(&self, rule: Rule) -> Strikes {
        let strikes = rule.strikes();
        self.shared.lock().rules.push(rule);
        strikes
    }

    /// Takes all rules back. What waits goes on waiting.
    pub fn heal(&self) {
        self.shared.lock().rules.clear();
    }

    /// Lets go what waits: statements on their way to the server, answers to the client, and all after [`hang_all`](Self::hang_all).
    pub fn resume(&self) {
        self.shared.change(|state| {
            state.hangs = false;
            state.resumed += 1;
        });
    }

    /// Cuts all connections, also those on which something waits. New ones are accepted.
    pub fn cut(&self) {
        self.shared.change(|state| state.links.clear());
    }

    /// Nothing gets through any more, in either direction, until [`resume`](Self::resume). Connections stay open, and new ones are
    /// accepted, by nobody who would answer.
    pub fn hang_all(&self) {
        self.shared.change(|state| state.hangs = true);
    }

    /// Cuts all connections and refuses new ones, until [`accept`](Self::accept).
    pub fn refuse(&self) {
        let acceptor = self
            .acceptor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(acceptor) = acceptor {
            acceptor.is_over.store(true, Ordering::SeqCst);
            // It looks when it accepts: here is a connection.
            let waker = TcpStream::connect(("127.0.0.1", self.port.number()));
            acceptor.thread.join().expect("a thread that ends");
            drop(waker);
        }
        self.cut();
    }

    /// Listens again, on the same port.
    pub fn accept(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port.number())).expect("a held port");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let (upstream, protocol) = (self.upstream.clone(), self.protocol);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                // A client that is gone already needs no link.
                let link = client.and_then(|client| {
                    Link::start(client, upstream.clone(), protocol(), Arc::clone(&shared))
                });
                link.unwrap_or_default();
            }
        });
        let acceptor = Acceptor { is_over, thread };
        let previous = self
            .acceptor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(acceptor);
        assert!(previous.is_none(), "it listened already");
    }

    /// How many requests reached the server that it has to answer: for Postgres, all that makes it ready for a query once
    /// more, for MySQL and Redis, a command. To prepare a statement is one, to execute it the next. Neither connecting counts, nor
    /// the ping that a pool sends in the background whenever a connection comes back.
    pub fn round_trips(&self) -> usize {
        self.shared.lock().round_trips
    }

    /// What clients asked to execute, in this order; also what never reached the server.
    pub fn statements(&self) -> Vec<Arc<str>> {
        self.shared.lock().statements.clone()
    }

    /// How many of these contain this text.
    pub fn count(&self, text: &str) -> usize {
        let state = self.shared.lock();
        let statements = state.statements.iter();
        statements.filter(|sql| sql.contains(text)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
    }
}

fn protocol_of(url: &str) -> fn() -> Arc<dyn Protocol> {
    match url.split_once("://") {
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => || Arc::new(super::postgres::Postgres::default()),
        #[cfg(feature = "mysql")]
        Some(("mysql" | "mariadb", _)) => || Arc::new(super::mysql::Mysql::default()),
        #[cfg(feature = "redis")]
        Some(("redis" | "valkey", _)) => || Arc::new(super::redis::Redis),
        _ => panic!("no protocol for {url}"),
    }
}
