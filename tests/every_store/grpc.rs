//! Unary gRPC calls, which tell only in their trailers how they ended.

use std::{convert::Infallible, future};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, service_fn};
use tower_idempotency::{IdempotencyLayer, RejectionKind, RequestBody, store::Takeover};

use crate::{
    backends::{Backend, Transaction},
    support::{Answer, Body, Runs, send},
};

/// Each through a layer of its own, so that only the store knows of the call before.
pub async fn a_call_is_replayed_with_its_trailers_byte_for_byte(backend: Backend) {
    let runs = Runs::default();
    let mut trailers = status("0");
    trailers.append("x-receipt", HeaderValue::from_static("7"));
    let opaque = HeaderValue::from_bytes(b"\xe4 %20").expect("a value");
    trailers.append("x-receipt", opaque);
    let call = async || {
        let told = trailers.clone();
        call(backend.layer(), &runs, "k", move |_| told.clone()).await
    };

    let (first, again) = (call().await, call().await);

    assert_eq!(first.trailers.as_ref(), Some(&trailers));
    assert_eq!(again.trailers, first.trailers);
    assert_eq!((&again.body[..], &first.body[..]), (MESSAGE, MESSAGE));
    assert_eq!(header(&again.head.headers, "x-shard"), "2");
    assert!(again.is_replay() && !first.is_replay());
    assert_eq!((runs.count(), backend.effects(&runs).await), (1, 1));
}

/// FAILED_PRECONDITION is the handler's refusal; with INTERNAL nobody knows.
pub async fn a_call_that_fails_in_its_trailers_is_undone_or_its_outcome_is_unknown(
    backend: Backend,
) {
    let mut done = 0;
    for (told, takeover) in [
        ("9", Takeover::Refuse),
        ("13", Takeover::Refuse),
        ("13", Takeover::RunAgain),
    ] {
        let (runs, key) = (Runs::default(), format!("{told} {takeover:?}"));
        let key = key.replace(' ', "-");
        let call = async || {
            let layer = backend.layer().with_takeover(takeover);
            let status = move |run| status(if run == 1 { told } else { "0" });
            call(layer, &runs, &key, status).await
        };

        let first = call().await;
        assert_eq!(ended(&first), told);
        if backend.is_transaction() {
            assert_eq!(backend.effects(&runs).await, done, "{key}: rolled back");
        }
        let again = call().await;
        if told == "13" && takeover == Takeover::Refuse && !backend.is_transaction() {
            assert_eq!(again.rejection(), Some(RejectionKind::OutcomeUnknown));
            let code = header(&again.head.headers, "idempotency-code");
            assert_eq!(code, "outcome_unknown");
            assert_eq!(runs.count(), 1);
            continue;
        }
        assert_eq!(ended(&again), "0");
        assert!(!again.head.headers.contains_key("idempotent-replayed"));
        assert!(call().await.is_replay());
        done += 1;
        assert_eq!(runs.count(), 2);
        if backend.is_transaction() {
            assert_eq!(backend.effects(&runs).await, done, "{key}: done once");
        }
    }
}

const MESSAGE: &[u8] = b"\0\0\0\0\x03\xff\x00\xfe";

fn header<'a>(fields: &'a HeaderMap, name: &str) -> &'a HeaderValue {
    fields.get(name).expect("it is told")
}

fn ended(answer: &Answer) -> &HeaderValue {
    header(answer.trailers.as_ref().expect("trailers"), "grpc-status")
}

fn status(status: &'static str) -> HeaderMap {
    let name = HeaderName::from_static("grpc-status");
    HeaderMap::from_iter([(name, HeaderValue::from_static(status))])
}

/// One call to a handler that has its effect, and ends with the trailers that the closure makes of the number of the run.
async fn call(
    layer: IdempotencyLayer,
    runs: &Runs,
    key: &str,
    trailers: impl Fn(usize) -> HeaderMap + Clone + Send + Sync + 'static,
) -> Answer {
    let runs = runs.clone();
    let handler = service_fn(move |request: Request<RequestBody<Body>>| {
        let trailers = trailers(runs.add());
        async move {
            if let Some(transaction) = Transaction::take(request.extensions()) {
                transaction.write().await;
            }
            let body = Full::new(Bytes::from_static(MESSAGE));
            let mut response = Response::new(body.with_trailers(future::ready(Some(Ok(trailers)))));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert("content-type", grpc);
            let shard = HeaderValue::from_static("2");
            response.headers_mut().insert("x-shard", shard);
            Ok::<_, Infallible>(response)
        }
    });
    let service = layer.with_grpc_unary(|_| true).layer(handler);
    let request = Request::post("/calls.v1.Calls/Unary")
        .header("content-type", "application/grpc")
        .header("idempotency-key", key)
        .body(Body::from("\0\0\0\0\0"))
        .expect("a request");
    send(&service, request).await
}
