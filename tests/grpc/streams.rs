//! Streams pass untouched, with a key and where one is required.

use tokio::sync::mpsc;
use tonic::{
    Request,
    codegen::tokio_stream::{self, Stream},
    service::Routes,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tower_idempotency::MemoryStore;

use crate::{
    calls::{Ask, Told},
    is_replay, is_unary, keyed,
    server::Server,
    support::{handler::layer, probe::Probe},
};

async fn server() -> Server {
    let layer = layer(MemoryStore::new()).require_key();
    Server::start(layer.with_grpc_unary(is_unary), &Probe::new()).await
}

#[tokio::test]
async fn a_server_stream_arrives_message_by_message() {
    let server = server().await;
    let mut client = server.client().await;
    for _ in 0..2 {
        let stream = client.download(keyed("k", "one two")).await;
        let mut stream = stream.expect("a stream").into_inner();
        // It never ends, so that whoever collected it would have nothing to tell.
        for word in ["one", "two"] {
            let told = stream.message().await.expect("a message");
            assert_eq!(told.expect("a message").text, word);
        }
    }
}

#[tokio::test]
async fn a_client_stream_arrives_whole() {
    let server = server().await;
    let mut client = server.client().await;
    let words = ["one", "two"].map(crate::ask);
    let request = with_key(tokio_stream::iter(words));
    let told = client.upload(request).await.expect("a reply");
    assert_eq!(told.get_ref().text, "one two");
    assert!(!is_replay(&told));
}

#[tokio::test]
async fn both_sides_talk_in_turn() {
    let server = server().await;
    let mut client = server.client().await;
    let (say, said) = mpsc::unbounded_channel::<Ask>();
    let asked = tokio_stream::wrappers::UnboundedReceiverStream::new(said);
    let told = client.talk(with_key(asked)).await.expect("a stream");
    let mut told = told.into_inner();
    for word in ["one", "two", "three"] {
        say.send(crate::ask(word)).expect("an open call");
        let answer: Told = told.message().await.expect("a message").expect("a message");
        assert_eq!(answer.text, word);
    }
    drop(say);
    assert_eq!(told.message().await.expect("an end"), None);
}

#[tokio::test]
async fn a_health_watch_goes_on_telling() {
    let (health, service) = tonic_health::server::health_reporter();
    health
        .set_service_status("calls", tonic_health::ServingStatus::NotServing)
        .await;
    let layer = layer(MemoryStore::new()).require_key();
    let layer = layer.with_grpc_unary(is_unary);
    let server = Server::serve(layer, Routes::new(service)).await;
    let mut client = HealthClient::new(server.channel().await);

    let watch = client.watch(HealthCheckRequest {
        service: "calls".into(),
    });
    let mut watch = watch.await.expect("a stream").into_inner();

    let mut next = async || {
        watch
            .message()
            .await
            .expect("a message")
            .expect("a message")
    };
    assert_eq!(next().await.status(), ServingStatus::NotServing);
    health
        .set_service_status("calls", tonic_health::ServingStatus::Serving)
        .await;
    assert_eq!(next().await.status(), ServingStatus::Serving);
}

fn with_key<S: Stream<Item = Ask>>(stream: S) -> Request<S> {
    let mut request = Request::new(stream);
    let key = "k".parse().expect("a metadata value");
    request.metadata_mut().insert("idempotency-key", key);
    request
}
