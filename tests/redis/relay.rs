//! An address that stands for one server now and for another later, as the name of a service does.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(super) struct Relay {
    pub(super) url: String,
    to: watch::Sender<u16>,
}

impl Relay {
    pub(super) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (to, port) = watch::channel(port);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", *port.borrow()));
                tokio::spawn(async move {
                    if let Ok(mut server) = server.await {
                        let _either = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { url, to }
    }

    /// New connections go there. The others stay as they are.
    pub(super) fn lead_to(&self, port: u16) {
        self.to.send_replace(port);
    }
}
