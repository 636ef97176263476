//! One connection: a thread that passes on what the client sends, and one for what the server answers.

use std::{
    io::{self, BufReader, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use tokio::sync::watch;

use super::{
    fault::Fault,
    protocol::{Protocol, Reply, Request},
    state::{Ends, Shared, cut},
};

/// A connection that was accepted.
#[derive(Clone, Debug)]
pub struct Link {
    number: u64,
    protocol: Arc<dyn Protocol>,
    shared: Arc<Shared>,
}

impl Link {
    pub fn start(
        client: TcpStream,
        upstream: String,
        protocol: Arc<dyn Protocol>,
        shared: Arc<Shared>,
    ) -> io::Result<()> {
        client.set_nodelay(true)?;
        let ends = Ends {
            client: client.try_clone()?,
            server: None,
            due: usize::from(protocol.has_handshake()),
            withheld: None,
            is_held: false,
        };
        let number = shared.change(|state| {
            state.last_link += 1;
            state.links.insert(state.last_link, ends);
            state.last_link
        });
        let link = Self {
            number,
            protocol,
            shared,
        };
        std::thread::spawn(move || {
            // Whatever ended it, the connection ends.
            link.run(client, &upstream).unwrap_or_default();
            link.shared.cut(link.number);
        });
        Ok(())
    }

    fn run(&self, client: TcpStream, upstream: &str) -> io::Result<()> {
        self.passes()?;
        let server = TcpStream::connect(upstream)?;
        server.set_nodelay(true)?;
        let own = server.try_clone()?;
        self.change(|ends| ends.server = Some(own))?;

        let link = self.clone();
        let (to_client, from_server) = (client.try_clone()?, server.try_clone()?);
        std::thread::spawn(move || {
            link.answers(from_server, to_client).unwrap_or_default();
            // While a fault holds the connection, the client learns of nothing.
            let held = link.wait(|ends| !ends.is_held).and_then(|()| link.passes());
            held.unwrap_or_default();
            link.shared.cut(link.number);
        });
        self.requests(client, server)
    }

    fn requests(&self, client: TcpStream, mut server: TcpStream) -> io::Result<()> {
        let mut to_client = client.try_clone()?;
        let mut client = BufReader::new(client);
        loop {
            let request = self.protocol.read_request(&mut client)?;
            let executes = request.executes.iter().cloned();
            self.shared.lock().statements.extend(executes);
            self.passes()?;
            let fault = self.shared.lock().meet(&request.executes);
            match fault {
                Some((fault, strikes)) => {
                    self.idle()?;
                    self.strike(fault, &strikes, &request, &mut server, &mut to_client)?;
                }
                None => self.forward(&request, &mut server)?,
            }
        }
    }

    fn answers(&self, server: TcpStream, mut client: TcpStream) -> io::Result<()> {
        let mut server = BufReader::new(server);
        loop {
            let answer = self.protocol.read_answer(&mut server)?;
            self.passes()?;
            let withheld = self.change(|ends| {
                let withheld = ends.withheld.as_mut();
                withheld.map(|kept| kept.extend(&answer.bytes)).is_some()
            })?;
            if !withheld {
                client.write_all(&answer.bytes)?;
            }
            if answer.is_last {
                self.change(|ends| ends.due -= 1)?;
            }
        }
    }

    fn strike(
        &self,
        fault: Fault,
        strikes: &watch::Sender<usize>,
        request: &Request,
        server: &mut TcpStream,
        client: &mut TcpStream,
    ) -> io::Result<()> {
        let struck = || strikes.send_modify(|count| *count += 1);
        match fault {
            Fault::Delay(time) => {
                struck();
                self.shared.pause(self.number, time)?;
                self.forward(request, server)
            }
            Fault::CutBefore => {
                // Counted before the client can know of it.
                struck();
                self.shared.cut(self.number);
                Err(cut())
            }
            Fault::CutAfter => {
                self.execute(request, server)?;
                // Counted before the client can know of it.
                struck();
                self.shared.cut(self.number);
                Err(cut())
            }
            Fault::CutClient => {
                self.hold(|| {
                    struck();
                    // It may have gone by itself.
                    client.shutdown(Shutdown::Both).unwrap_or_default();
                })?;
                self.execute(request, server)?;
                struck();
                self.shared.cut(self.number);
                Err(cut())
            }
            Fault::SwallowReply => {
                self.execute(request, server)?;
                self.hold(struck)?;
                self.deliver(client)
            }
            Fault::Hang => {
                self.hold(struck)?;
                self.forward(request, server)
            }
        }
    }

    fn forward(&self, request: &Request, server: &mut TcpStream) -> io::Result<()> {
        if request.reply != Reply::None {
            self.change(|ends| ends.due += 1)?;
        }
        self.shared.lock().round_trips += usize::from(request.reply == Reply::Answer);
        server.write_all(&request.bytes)
    }

    /// Has it executed, and keeps the answer.
    fn execute(&self, request: &Request, server: &mut TcpStream) -> io::Result<()> {
        self.change(|ends| ends.withheld = Some(Vec::new()))?;
        self.forward(request, server)?;
        self.idle()
    }

    /// Gives the client what was kept from it.
    fn deliver(&self, client: &mut TcpStream) -> io::Result<()> {
        loop {
            let kept = self.change(|ends| {
                let kept = ends.withheld.take().filter(|kept| !kept.is_empty());
                // What comes while this is written comes after it.
                ends.withheld = kept.is_some().then(Vec::new);
                kept
            })?;
            match kept {
                Some(kept) => client.write_all(&kept)?,
                None => return Ok(()),
            }
        }
    }

    /// Waits until all is let go.
    fn hold(&self, struck: impl FnOnce()) -> io::Result<()> {
        let resumed = self.shared.lock().resumed;
        self.change(|ends| ends.is_held = true)?;
        struck();
        self.shared
            .wait(self.number, |state, _| state.resumed != resumed)?;
        self.change(|ends| ends.is_held = false)
    }

    /// Waits until the client has all answers.
    fn idle(&self) -> io::Result<()> {
        self.wait(|ends| ends.due == 0)
    }

    /// Waits until anything gets through.
    fn passes(&self) -> io::Result<()> {
        self.shared.wait(self.number, |state, _| !state.hangs)
    }

    fn wait(&self, ready: impl Fn(&Ends) -> bool) -> io::Result<()> {
        self.shared.wait(self.number, |_, ends| ready(ends))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Ends) -> T) -> io::Result<T> {
        self.shared.change_link(self.number, change)
    }
}
