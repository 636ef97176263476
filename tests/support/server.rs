//! A real server on loopback, for HTTP/1 and HTTP/2, that tells when a caller has gone.

use std::net::SocketAddr;

use axum::{Router, extract::Extension, middleware, routing};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tower_idempotency::{IdempotencyContext, IdempotencyLayer};

use super::probe::Probe;

/// The server. It ends when it is dropped, or [shut down](Self::shut_down).
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    gone: watch::Sender<usize>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Server {
    /// Serves `/charges`: `POST` through the layer to the probe, `GET` to see that the server lives.
    pub async fn start(layer: IdempotencyLayer, probe: Probe) -> Self {
        let gone = watch::Sender::new(0);
        let counted = gone.clone();
        let charge = move |context: Option<Extension<IdempotencyContext>>| async move {
            let context = context.as_ref().map(|extension| &extension.0);
            probe.run(context).await.expect("a response")
        };
        let routes = routing::post(charge).get(async || "alive");
        let app = Router::new()
            .route("/charges", routes)
            .layer(layer)
            .layer(middleware::from_fn(
                move |request: axum::extract::Request, next: middleware::Next| {
                    let caller = Caller(counted.clone(), false);
                    async move {
                        let mut caller = caller;
                        let response = next.run(request).await;
                        caller.1 = true;
                        response
                    }
                },
            ));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        Self {
            address,
            gone,
            stop,
            served: tokio::spawn(serve(listener, app, stopped)),
        }
    }

    /// Waits until so many callers have gone without an answer.
    pub async fn callers_gone(&self, count: usize) {
        let mut gone = self.gone.subscribe();
        let reached = gone.wait_for(|gone| *gone >= count).await;
        drop(reached.expect("the server lives"));
    }

    /// As on SIGTERM: accepts nothing more, and waits for the connections that are left.
    pub async fn shut_down(self) {
        self.stop.send(()).expect("a server to stop");
        self.served.await.expect("the server ends well");
    }

    /// Sends these bytes on a connection of their own.
    pub async fn connect(&self, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        stream
            .write_all(request)
            .await
            .expect("the request is sent");
        stream
    }

    /// Sends these bytes and reads all that comes back. The request should close the connection.
    pub async fn exchange(&self, request: &[u8]) -> String {
        let stream = self.connect(request).await;
        read_all(stream).await
    }

    /// Whether it still answers.
    pub async fn is_alive(&self) -> bool {
        let alive = b"GET /charges HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        self.exchange(alive).await.ends_with("alive")
    }
}

/// Reads to the end of the connection, be it by a reset.
pub async fn read_all(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    drop(stream.read_to_end(&mut all).await);
    String::from_utf8_lossy(&all).into_owned()
}

async fn serve(listener: TcpListener, app: Router, mut stopped: oneshot::Receiver<()>) {
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => break,
        };
        let (stream, _) = accepted.expect("a connection");
        let service = TowerToHyperService::new(app.clone());
        let server = auto::Builder::new(TokioExecutor::new());
        let connection = server.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection.into_owned());
        tokio::spawn(async move { drop(connection.await) });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Dropped before there was a response, it counts as gone.
struct Caller(watch::Sender<usize>, bool);

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.1 {
            self.0.send_modify(|gone| *gone += 1);
        }
    }
}
