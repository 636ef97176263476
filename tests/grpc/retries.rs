//! The client layer under a tonic client, against the server's layer: one effect, whatever is lost on the way.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, Response};
use tonic::{Code, body::Body, transport::Channel};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_idempotency::{
    MemoryStore, Outcome, RejectionKind, RequestBody, ResponseBody, client::IdempotentRetryLayer,
};

use crate::{
    ask,
    calls::calls_client::CallsClient,
    is_replay, is_unary, keyed,
    log::Log,
    server::Server,
    support::{handler::layer, probe::Probe},
};

/// The channel, but for the first `lost` answers, which arrive nowhere.
fn losing(
    channel: Channel,
    lost: usize,
) -> impl Service<
    Request<RequestBody<Body>>,
    Response = Response<Body>,
    Error = tonic::Status,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let answers = Arc::new(AtomicUsize::new(0));
    service_fn(move |request: Request<RequestBody<Body>>| {
        let (channel, answers) = (channel.clone(), Arc::clone(&answers));
        async move {
            let answer = channel.oneshot(request.map(Body::new)).await;
            let answer = answer.map_err(|error| tonic::Status::from_error(error.into()))?;
            if answers.fetch_add(1, Ordering::SeqCst) < lost {
                return Err(tonic::Status::unavailable("lost"));
            }
            Ok(answer)
        }
    })
}

async fn client(
    server: &Server,
    lost: usize,
) -> CallsClient<
    impl Service<
        Request<Body>,
        Response = Response<ResponseBody<Body>>,
        Error = tower_idempotency::client::Error,
        Future: Send,
    > + Clone,
> {
    let layer = IdempotentRetryLayer::new().with_grpc_unary(is_unary);
    CallsClient::new(layer.layer(losing(server.channel().await, lost)))
}

const IN_FLIGHT: Outcome = Outcome::Refused(RejectionKind::InFlight);

#[tokio::test]
async fn a_lost_answer_is_replayed_to_the_retry_with_one_effect() {
    let probe = Probe::new();
    let (log, layer) = Log::of(layer(MemoryStore::new()).require_key());
    let server = Server::start(layer, &probe).await;

    // The key is made by the client layer.
    let reply = client(&server, 1).await.unary(ask("charge")).await;

    let reply = reply.expect("a reply");
    assert_eq!(reply.get_ref().text, "run 1");
    assert!(is_replay(&reply));
    assert_eq!(log.outcomes(), [Outcome::Saved, Outcome::Replayed]);
    log.assert_one_key();
    assert_eq!(probe.effects(), 1);
}

#[tokio::test]
async fn without_the_servers_layer_the_same_has_two_effects() {
    let probe = Probe::new();
    let server = Server::start(layer(MemoryStore::new()), &probe).await;
    let reply = client(&server, 1).await.unary(ask("charge")).await;
    assert_eq!(reply.expect("a reply").get_ref().text, "run 2");
    assert_eq!(probe.effects(), 2);
}

#[tokio::test]
async fn a_call_in_flight_is_waited_for_and_replayed() {
    let probe = Probe::new().shut();
    let (log, layer) = Log::of(layer(MemoryStore::new()));
    let server = Server::start(layer, &probe).await;
    let mut first = server.client().await;
    let first = tokio::spawn(async move { first.unary(keyed("k", "charge")).await });
    probe.started(1).await;

    let mut duplicate = client(&server, 0).await;
    let (reply, ()) = tokio::join!(duplicate.unary(keyed("k", "charge")), async {
        log.saw(IN_FLIGHT).await;
        probe.open();
    });

    assert!(is_replay(&reply.expect("a reply")));
    first.await.expect("a task").expect("a reply");
    log.assert_one_key();
    assert_eq!((probe.runs(), probe.effects()), (1, 1));
}

#[tokio::test]
async fn a_key_of_another_call_is_refused_once() {
    let probe = Probe::new();
    let (log, layer) = Log::of(layer(MemoryStore::new()));
    let server = Server::start(layer, &probe).await;
    let mut client = client(&server, 0).await;
    client.unary(keyed("k", "charge")).await.expect("a reply");

    let reused = client.unary(keyed("k", "another")).await;

    assert_eq!(reused.expect_err("refused").code(), Code::InvalidArgument);
    let refused = Outcome::Refused(RejectionKind::KeyReused);
    assert_eq!(log.outcomes(), [Outcome::Saved, refused]);
}
