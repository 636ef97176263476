//! Response bodies: what is too large, too slow or endless reaches the caller in full, and is never run again.
#![cfg(feature = "memory")]

mod support;

use std::{
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use support::{
    Body, Runs,
    body::{Broken, Pipe, Script, Step},
    handler::{answering, layer, response},
    post, send,
    spy::{Call, Spy},
};
use tower::{Layer, Service, ServiceExt};
use tower_idempotency::{IdempotencyLayer, MemoryStore, RejectionKind, RequestBody, ResponseBody};

const LIMIT: usize = 8;

/// The first answer of a handler whose body follows this script, unread.
async fn first_answer(
    idempotency: &IdempotencyLayer,
    runs: &Runs,
    body: Script,
) -> Response<ResponseBody<Script>> {
    let body = std::sync::Mutex::new(Some(body));
    let body = std::sync::Arc::new(body);
    let handler = answering(runs, move |_, _, _| {
        let body = body.lock().expect("a lock").take();
        Response::new(body.expect("one run"))
    });
    let answer = idempotency.layer(handler).oneshot(post("k", "{}")).await;
    answer.expect("an answer")
}

/// What a retry gets.
async fn retry(idempotency: &IdempotencyLayer, runs: &Runs) -> support::Answer {
    let handler = answering(runs, |_, _, _| response(StatusCode::OK, "again"));
    send(&idempotency.layer(handler), post("k", "{}")).await
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(header::ETAG, HeaderValue::from_static("\"e\""))])
}

#[tokio::test]
async fn a_body_over_the_limit_reaches_the_caller_whole_and_is_not_kept() {
    let scripts = [
        vec![Step::Data("123456789")],
        vec![Step::Data("1234"), Step::Data("56789")],
        vec![
            Step::Data("1234"),
            Step::Data("56789"),
            Step::Data("0"),
            Step::Trailers(trailers()),
        ],
    ];
    for steps in scripts {
        let whole: String = steps
            .iter()
            .map(|step| {
                if let Step::Data(text) = step {
                    text
                } else {
                    ""
                }
            })
            .collect();
        for announced in [false, true] {
            let (runs, store) = (Runs::default(), Spy::new());
            let idempotency = layer(store.clone()).with_response_body_limit(LIMIT);
            let mut script = Script::new(steps.clone());
            if announced {
                script = script.with_length(whole.len() as u64);
            }

            let first = first_answer(&idempotency, &runs, script).await;
            // The record is complete before the caller has the head.
            assert_eq!(store.calls(), [Call::Reserve, Call::Complete]);
            let first = support::read(first).await;
            assert_eq!(first.text(), whole);
            let ends_with_trailers = matches!(steps.last(), Some(Step::Trailers(_)));
            assert_eq!(first.trailers.is_some(), ends_with_trailers);

            let again = retry(&idempotency, &runs).await;
            assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
            assert_eq!(again.status(), StatusCode::CONFLICT);
            assert_eq!(runs.count(), 1);
        }
    }
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_replayed() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    let script = Script::new([
        Step::Data("1234"),
        Step::Data("5678"),
        Step::Trailers(trailers()),
    ]);

    let first = support::read(first_answer(&idempotency, &runs, script).await).await;
    let again = retry(&idempotency, &runs).await;

    for answer in [&first, &again] {
        assert_eq!(answer.text(), "12345678");
        assert_eq!(answer.trailers, Some(trailers()));
    }
    assert!(again.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_body_announced_as_too_large_is_not_read_by_the_layer() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    let script = Script::new([Step::Data("123456789")]).with_length(9);
    let frames = script.frames();

    let first = first_answer(&idempotency, &runs, script).await;

    assert_eq!(frames.load(Ordering::SeqCst), 0);
    assert_eq!(first.body().size_hint().exact(), Some(9));
}

#[tokio::test]
async fn an_endless_body_streams_and_the_layer_does_not_pump_it() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    let script = Script::new([Step::Endless("1234")]);
    let frames = script.frames();

    let mut body = first_answer(&idempotency, &runs, script).await.into_body();

    // Two that fit and the one that didn't.
    assert_eq!(frames.load(Ordering::SeqCst), 3);
    let mut received = 0;
    while received < 100 * LIMIT {
        let frame = body.frame().await.expect("no end").expect("no error");
        received += frame.into_data().expect("data").len();
    }
    let again = retry(&idempotency, &runs).await;
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
    assert_eq!(runs.count(), 1);
}

/// It never comes to the limit, and its stream never waits: only the clock can end it.
#[tokio::test]
async fn an_endless_body_of_empty_frames_streams_after_the_collect_limit() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_collect_limit(Duration::from_millis(10));
    let script = Script::new([Step::Endless("")]);

    let first = first_answer(&idempotency, &runs, script).await;

    assert_eq!(first.status(), StatusCode::OK);
    let again = retry(&idempotency, &runs).await;
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dribbling_body_streams_after_the_collect_limit() {
    for steps in [
        vec![Step::Dribble("x")],
        vec![Step::Data("x"), Step::Data("x"), Step::Hang],
    ] {
        let runs = Runs::default();
        let limit = Duration::from_millis(2500);
        let idempotency = layer(MemoryStore::new()).with_collect_limit(limit);
        let start = tokio::time::Instant::now();

        let mut body = first_answer(&idempotency, &runs, Script::new(steps.clone()))
            .await
            .into_body();

        assert_eq!(start.elapsed(), limit);
        let first = body.frame().await.expect("no end").expect("no error");
        assert_eq!(first.into_data().expect("data"), "xx");
        if let [Step::Dribble(_)] = steps[..] {
            let next = body.frame().await.expect("no end").expect("no error");
            assert_eq!(next.into_data().expect("data"), "x");
        }
        let again = retry(&idempotency, &runs).await;
        assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_end_a_body_though_its_stream_does_not() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new());
    let script = Script::new([Step::Data("1"), Step::Trailers(trailers()), Step::Hang]);

    let first = support::read(first_answer(&idempotency, &runs, script).await).await;
    let again = retry(&idempotency, &runs).await;

    assert_eq!(first.text(), "1");
    assert_eq!(first.trailers, Some(trailers()));
    assert!(again.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn server_sent_events_are_never_held_back() {
    for content_type in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let runs = Runs::default();
        let idempotency = layer(MemoryStore::new());
        let (sender, body) = Pipe::new();
        let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
        let service = idempotency.layer(answering(&runs, move |_, _, _| {
            let body = body.lock().expect("a lock").take().expect("one run");
            let response = Response::builder().header(header::CONTENT_TYPE, content_type);
            response.body(body).expect("a response")
        }));

        // It is there though no event is, and nothing has ended.
        let first = service.oneshot(post("k", "{}")).await.expect("an answer");
        sender.send("data: 1\n\n").expect("a reader");
        let frame = first
            .into_body()
            .frame()
            .await
            .expect("an event")
            .expect("no error");
        assert_eq!(frame.into_data().expect("data"), "data: 1\n\n");

        let again = retry(&idempotency, &runs).await;
        assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn a_body_that_fails_or_panics_is_a_500_and_never_the_handlers_head() {
    let ten = || std::iter::repeat_n(Step::Data("x"), 10);
    for end in [Step::Fail, Step::Panic] {
        for steps in [vec![end.clone()], ten().chain([end.clone()]).collect()] {
            let (runs, store) = (Runs::default(), Spy::new());
            let idempotency = layer(store.clone());

            let first = first_answer(&idempotency, &runs, Script::new(steps)).await;

            assert_eq!(first.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let first = support::read(first).await;
            assert_eq!(first.rejection(), Some(RejectionKind::HandlerFailed));
            assert_eq!(store.calls(), [Call::Reserve, Call::Abandon]);
            let again = retry(&idempotency, &runs).await;
            assert_eq!(again.rejection(), Some(RejectionKind::OutcomeUnknown));
            assert_eq!(runs.count(), 1);
        }
    }
}

#[tokio::test]
async fn a_body_that_fails_beyond_the_limit_fails_for_its_caller_and_is_not_kept() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    let script = Script::new([Step::Data("123456789"), Step::Fail]);

    let mut body = first_answer(&idempotency, &runs, script).await.into_body();

    let frame = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(frame.into_data().expect("data"), "123456789");
    assert_eq!(body.frame().await.expect("a frame").err(), Some(Broken));
    let again = retry(&idempotency, &runs).await;
    assert_eq!(again.rejection(), Some(RejectionKind::ResponseNotKept));
}

#[tokio::test]
async fn a_body_of_one_frame_is_answered_and_replayed_without_a_copy() {
    let runs = Runs::default();
    let made = Bytes::from(vec![b'x'; 4096]);
    let service = layer(MemoryStore::new()).layer(answering(&runs, {
        let made = made.clone();
        move |_, _, _| response(StatusCode::OK, made.clone())
    }));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = service.clone().oneshot(post("k", "{}")).await;
        let frame = answer.expect("an answer").into_body().frame().await;
        let data = frame.expect("a frame").expect("no error").into_data();
        answers.push(data.expect("data"));
    }
    assert_eq!(answers[0].as_ptr(), made.as_ptr());
    // The store has a copy of its own, and that one is what every replay sends.
    assert_eq!(answers[1].as_ptr(), answers[2].as_ptr());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn every_response_body_tells_its_length_and_end() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    // Streamed: nothing is saved of it.
    let handler = answering(&runs, |_, _, _| response(StatusCode::NOT_FOUND, "123"));
    measure(idempotency.layer(handler), 3).await;
    // Collected, a replay, and a refusal.
    let handler = answering(&runs, |_, _, _| response(StatusCode::OK, "1234"));
    let service = idempotency.layer(handler);
    measure(service.clone(), 4).await;
    measure(service, 4).await;
    let handler = answering(&runs, |_, _, _| response(StatusCode::OK, ""));
    let empty = layer(MemoryStore::new())
        .layer(handler)
        .oneshot(post("k", "{}"))
        .await;
    assert!(empty.expect("an answer").into_body().is_end_stream());

    // A prefix, then a rest of known or unknown length.
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    let script = Script::new([Step::Data("1234"), Step::Data("56789"), Step::Data("0")]);
    let body = first_answer(&idempotency, &runs, script).await.into_body();
    assert_eq!(
        (body.size_hint().lower(), body.size_hint().upper()),
        (9, None)
    );
    assert!(!body.is_end_stream());
}

/// Two frames. With the last one it is known to have ended, and before, how long it can be at most.
struct Foreseen(Vec<&'static str>);

impl http_body::Body for Foreseen {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.0.pop();
        Poll::Ready(next.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_upper(self.0.iter().map(|text| text.len() as u64).sum());
        hint
    }
}

#[tokio::test]
async fn a_body_that_ends_with_the_frame_that_is_too_much_has_not_ended_yet() {
    let runs = Runs::default();
    let idempotency = layer(MemoryStore::new()).with_response_body_limit(LIMIT);
    let handler = answering(&runs, |_, _, _| {
        Response::new(Foreseen(vec!["56789", "1234"]))
    });
    let answer = idempotency.layer(handler).oneshot(post("k", "{}")).await;

    let body = answer.expect("an answer").into_body();
    assert!(!body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(9));
    let body = body.collect().await.expect("a whole body");
    assert_eq!(body.to_bytes(), "123456789");
}

/// The length that the body announces is the one that it has, before the first frame and at its end.
async fn measure<S>(service: S, length: u64)
where
    S: Service<
            http::Request<Body>,
            Response = Response<ResponseBody<Full<Bytes>>>,
            Error: std::fmt::Debug,
        >,
{
    let mut body = service
        .oneshot(post("k", "{}"))
        .await
        .expect("an answer")
        .into_body();
    assert_eq!(
        body.size_hint().exact(),
        SizeHint::with_exact(length).exact()
    );
    assert!(!body.is_end_stream());
    let frame = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(frame.into_data().expect("data").len() as u64, length);
    assert!(body.is_end_stream());
    assert!(body.frame().await.is_none());
}

#[test]
fn bodies_can_be_moved_while_they_are_read_if_what_they_wrap_can() {
    fn unpin<T: Unpin>() {}
    fn sent<T: Send>() {}
    unpin::<RequestBody<Body>>();
    unpin::<ResponseBody<Body>>();
    sent::<RequestBody<Script>>();
    sent::<ResponseBody<Pin<Box<dyn http_body::Body<Data = Bytes, Error = Broken> + Send>>>>();
}
