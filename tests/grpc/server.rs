//! A tonic server on loopback whose calls do what they are asked in words.

use std::{net::SocketAddr, pin::Pin};

use http_body_util::BodyExt;
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{
    Code, Extensions, Request, Response, Status, Streaming, async_trait,
    codegen::tokio_stream::{self, Stream, StreamExt},
    service::{LayerExt, Routes},
    transport::{
        Channel, Endpoint,
        server::{Server as Transport, TcpIncoming},
    },
};
use tower::Layer;
use tower_idempotency::{IdempotencyContext, IdempotencyLayer, Verdict};

use crate::{
    Client,
    calls::{
        Ask, Told,
        calls_server::{Calls, CallsServer},
    },
    support::probe::Probe,
};

/// Where a layer is put.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    Server,
    Service,
}

/// The server. It ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Server {
    /// Serves [`Calls`] behind the layer.
    pub async fn start(layer: IdempotencyLayer, probe: &Probe) -> Self {
        Self::start_at(Place::Server, layer, probe).await
    }

    pub async fn start_at(place: Place, layer: IdempotencyLayer, probe: &Probe) -> Self {
        let calls = services(probe);
        match place {
            Place::Server => Self::serve(layer, Routes::new(calls)).await,
            Place::Service => {
                let incoming = incoming().await;
                let address = incoming.local_addr().expect("an address");
                let server = Transport::builder().add_service(layer.named_layer(calls));
                Self {
                    address,
                    serving: tokio::spawn(async move {
                        let served = server.serve_with_incoming(incoming).await;
                        served.expect("a server that runs");
                    }),
                }
            }
        }
    }

    /// Serves these routes behind the layer.
    pub async fn serve<L, R>(layer: L, routes: Routes) -> Self
    where
        L: Layer<Routes> + Clone + Send + Sync + 'static,
        L::Service: tower::Service<Call, Response = http::Response<R>, Error: Into<BoxError> + Send>
            + Clone
            + Send
            + 'static,
        <L::Service as tower::Service<Call>>::Future: Send,
        R: http_body::Body<Data = bytes::Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let incoming = incoming().await;
        let address = incoming.local_addr().expect("an address");
        let server = Transport::builder().layer(layer).add_routes(routes);
        Self {
            address,
            serving: tokio::spawn(async move {
                let served = server.serve_with_incoming(incoming).await;
                served.expect("a server that runs");
            }),
        }
    }

    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::try_from(format!("http://{}", self.address));
        let channel = endpoint.expect("an address").connect().await;
        channel.expect("a connection")
    }

    pub async fn client(&self) -> Client {
        Client::new(self.channel().await)
            .max_decoding_message_size(LARGE)
            .max_encoding_message_size(LARGE)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The calls, whose runs the probe counts and holds.
pub fn services(probe: &Probe) -> CallsServer<Service> {
    CallsServer::new(Service(probe.clone()))
        .max_decoding_message_size(LARGE)
        .max_encoding_message_size(LARGE)
}

type Call = http::Request<tonic::body::Body>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Above every message here.
const LARGE: usize = 64 << 20;

async fn incoming() -> TcpIncoming {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    TcpIncoming::from(listener)
}

/// Counts by its probe, and does what it is asked in words.
pub struct Service(Probe);

impl Service {
    /// Runs the probe, so that the call is counted and can be held, then does as it is told:
    /// `status 5` fails, `large 100` answers so many bytes, `panic` panics, `tombstone` isn't to be kept; anything else is answered.
    async fn act(&self, extensions: &Extensions, text: &str) -> Result<Response<Told>, Status> {
        let answered = self.0.run(extensions.get::<IdempotencyContext>()).await;
        let run = answered.map_err(Status::internal)?;
        assert_ne!(text, "panic", "a handler that panics");
        let told = |text| Response::new(Told { text });
        match text.split_once(' ') {
            Some(("status", code)) => {
                let code: i32 = code.parse().expect("a number");
                Err(Status::new(Code::from(code), format!("told to: {code}")))
            }
            Some(("large", length)) => Ok(told("x".repeat(length.parse().expect("a number")))),
            _ => {
                let bytes = run.into_body().collect().await;
                let bytes = bytes.expect("a whole body").to_bytes();
                let mut response = told(String::from_utf8_lossy(&bytes).into_owned());
                let value = "7".parse().expect("a metadata value");
                response.metadata_mut().insert("x-receipt", value);
                if text == "tombstone" {
                    response.extensions_mut().insert(Verdict::Tombstone);
                }
                Ok(response)
            }
        }
    }
}

/// What the streams of these calls are.
type TellingStream = Pin<Box<dyn Stream<Item = Result<Told, Status>> + Send>>;

#[async_trait]
impl Calls for Service {
    async fn unary(&self, request: Request<Ask>) -> Result<Response<Told>, Status> {
        let text = request.get_ref().text.clone();
        self.act(request.extensions(), &text).await
    }

    type DownloadStream = TellingStream;

    /// Its text, word by word, and then no end.
    async fn download(&self, request: Request<Ask>) -> Result<Response<TellingStream>, Status> {
        let text = request.get_ref().text.clone();
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        let words = tokio_stream::iter(words).map(|text| Ok(Told { text }));
        Ok(Response::new(Box::pin(
            words.chain(tokio_stream::pending()),
        )))
    }

    /// All words, joined.
    async fn upload(&self, request: Request<Streaming<Ask>>) -> Result<Response<Told>, Status> {
        let mut words = Vec::new();
        let mut asked = request.into_inner();
        while let Some(ask) = asked.message().await? {
            words.push(ask.text);
        }
        let text = words.join(" ");
        Ok(Response::new(Told { text }))
    }

    type TalkStream = TellingStream;

    /// Each word at once.
    async fn talk(
        &self,
        request: Request<Streaming<Ask>>,
    ) -> Result<Response<TellingStream>, Status> {
        let asked = request.into_inner();
        let told = asked.map(|ask| ask.map(|ask| Told { text: ask.text }));
        Ok(Response::new(Box::pin(told)))
    }
}
