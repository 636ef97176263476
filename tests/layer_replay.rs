//! A replay is the first answer again: status, headers, body and trailers, and nothing of the first exchange alone.
#![cfg(feature = "memory")]

mod support;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use support::{
    Answer, Body, Runs,
    handler::{answering, layer, response},
    post, send,
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Outcome, RejectionKind, RequestBody};

/// The first answer of this handler and its replay.
async fn twice(
    idempotency: IdempotencyLayer,
    answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
) -> (Answer, Answer) {
    let runs = Runs::default();
    let service = idempotency.layer(answering(&runs, move |_, _, _| answer()));
    let first = send(&service, post("k", "{}")).await;
    let replay = send(&service, post("k", "{}")).await;
    assert_eq!(runs.count(), 1);
    assert!(!first.is_replay());
    (first, replay)
}

/// The headers without the one that marks a replay.
fn unmarked(answer: &Answer) -> HeaderMap {
    let mut headers = answer.head.headers.clone();
    headers.remove("idempotent-replayed");
    headers
}

fn with(fields: &[(&'static str, &'static str)]) -> Response<Body> {
    let mut response = response(StatusCode::CREATED, "{}");
    for (name, value) in fields {
        response
            .headers_mut()
            .append(*name, HeaderValue::from_static(value));
    }
    response
}

#[tokio::test]
async fn status_headers_and_body_are_those_of_the_first_answer() {
    let (first, replay) = twice(layer(MemoryStore::new()), || {
        let mut response = with(&[
            ("location", "/charges/1"),
            ("etag", "\"v1\""),
            ("x-custom", "a"),
            ("link", "</1>"),
            ("x-custom", "b"),
            ("vary", "origin"),
            ("x-custom", ""),
        ]);
        *response.body_mut() = Body::from(r#"{"b":1, "a":1.0}"#);
        response
    })
    .await;

    assert!(replay.is_replay());
    assert_eq!(replay.status(), StatusCode::CREATED);
    assert_eq!(replay.body, first.body);
    let fields = |answer: &Answer| -> Vec<_> {
        let headers = unmarked(answer);
        headers
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    assert_eq!(fields(&replay), fields(&first));
    let lines = replay.head.headers.get_all("x-custom").iter();
    assert_eq!(lines.collect::<Vec<_>>(), ["a", "b", ""]);
    assert_eq!(
        replay
            .head
            .headers
            .get_all("idempotent-replayed")
            .iter()
            .count(),
        1
    );
}

#[tokio::test]
async fn every_body_is_replayed_byte_by_byte_also_an_empty_one() {
    let cases: [(u16, &'static [u8]); 9] = [
        (200, b""),
        (200, b"null"),
        (200, b"{\"b\":1, \"a\":1.0}"),
        (200, b"\x00\xff\xfe\x80"),
        (202, b""),
        (204, b""),
        (205, b""),
        (303, b""),
        (304, b""),
    ];
    for (code, body) in cases {
        let (first, replay) = twice(layer(MemoryStore::new()), move || {
            let status = StatusCode::from_u16(code).expect("a status");
            let mut response = response(status, body);
            let location = HeaderValue::from_static("/1");
            response.headers_mut().insert(header::LOCATION, location);
            response
        })
        .await;
        assert!(replay.is_replay());
        for answer in [&first, &replay] {
            assert_eq!((answer.status().as_u16(), &*answer.body), (code, body));
            assert_eq!(answer.head.headers[header::LOCATION], "/1");
        }
        assert_eq!(replay.head.headers.get(header::CONTENT_LENGTH), None);
    }
}

#[tokio::test]
async fn trailers_are_replayed() {
    let runs = Runs::default();
    let trailers = HeaderMap::from_iter([(header::ETAG, HeaderValue::from_static("\"e\""))]);
    let service = layer(MemoryStore::new()).layer(answering(&runs, {
        let trailers = trailers.clone();
        move |_, _, _| {
            let trailers = trailers.clone();
            let body = Body::from("data").with_trailers(async move { Some(Ok(trailers)) });
            Response::new(body.boxed())
        }
    }));
    for replayed in [false, true] {
        let answer = send(&service, post("k", "{}")).await;
        assert_eq!(answer.is_replay(), replayed);
        assert_eq!(
            (answer.text(), answer.trailers.as_ref()),
            ("data", Some(&trailers))
        );
    }
    assert_eq!(runs.count(), 1);
}

/// Headers that belong to the first exchange alone.
const OF_THE_EXCHANGE: [(&str, &str); 15] = [
    ("connection", "x-hop, close"),
    ("keep-alive", "timeout=5"),
    ("x-hop", "named by connection"),
    ("te", "trailers"),
    ("trailer", "etag"),
    ("transfer-encoding", "chunked"),
    ("upgrade", "h2c"),
    ("proxy-connection", "close"),
    ("proxy-authenticate", "Basic"),
    ("proxy-authentication-info", "x"),
    ("content-length", "2"),
    ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ("set-cookie", "a=1"),
    ("set-cookie", "b=2"),
    ("www-authenticate", "Bearer"),
];

fn of_the_exchange_and(name: &'static str, value: &'static str) -> Response<Body> {
    let mut response = with(&OF_THE_EXCHANGE);
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    response
}

#[tokio::test]
async fn headers_of_the_first_exchange_reach_its_caller_and_are_not_replayed() {
    let answer = || of_the_exchange_and("cache-control", "no-store");
    let (first, replay) = twice(layer(MemoryStore::new()), answer).await;

    assert_eq!(first.head.headers, *answer().headers());
    let kept = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    assert_eq!(unmarked(&replay), HeaderMap::from_iter([kept]));
}

#[tokio::test]
async fn what_is_saved_of_the_headers_can_be_adjusted() {
    let idempotency = layer(MemoryStore::new())
        .with_saved_header(header::SET_COOKIE)
        .with_dropped_header(HeaderName::from_static("x-ratelimit-left"));
    let answer = || of_the_exchange_and("x-ratelimit-left", "41");
    let (first, replay) = twice(idempotency, answer).await;

    assert_eq!(first.head.headers["x-ratelimit-left"], "41");
    let headers = unmarked(&replay);
    let cookies = headers.get_all(header::SET_COOKIE).iter();
    assert_eq!(cookies.collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(headers.keys_len(), 1, "{headers:?}");
}

#[tokio::test]
async fn a_handler_cannot_mark_its_own_answer_as_a_replay() {
    let answer = || with(&[("idempotent-replayed", "true")]);
    let (first, replay) = twice(layer(MemoryStore::new()), answer).await;

    assert!(!first.is_replay());
    assert!(replay.is_replay());
}

#[tokio::test]
async fn a_refusal_that_a_handler_passes_on_is_not_told_as_the_layers_own() {
    // Of another service with such a layer, which the handler calls in this process.
    let runs = Runs::default();
    let other = layer(MemoryStore::new())
        .require_key()
        .layer(answering::<Body, _, _>(&runs, |_, _, _| {
            response(StatusCode::CREATED, "")
        }));
    let calling = service_fn(move |_: Request<RequestBody<Body>>| {
        let unkeyed = Request::post("/").body(Body::default()).expect("a request");
        other.clone().oneshot(unkeyed)
    });
    let service = layer(MemoryStore::new()).layer(calling);

    let passed_on = send(&service, post("k", "{}")).await;
    assert_eq!(passed_on.status(), StatusCode::BAD_REQUEST);
    assert_eq!(passed_on.rejection(), None);
    assert_eq!(passed_on.head.extensions.get(), Some(&Outcome::Released));
}

#[tokio::test]
async fn a_head_with_no_room_for_what_a_replay_adds_is_not_kept() {
    // As many as an `http::HeaderMap` holds, of many names or of one.
    const MOST: usize = 24_576;
    let many_names = |response: &mut Response<Body>| {
        for number in 0..MOST {
            let name = format!("x-{number}").parse::<HeaderName>();
            response
                .headers_mut()
                .insert(name.expect("a name"), HeaderValue::from_static(""));
        }
    };
    let many_values = |response: &mut Response<Body>| {
        for _ in 0..=MOST {
            response
                .headers_mut()
                .append("x-one", HeaderValue::from_static(""));
        }
    };
    for fill in [many_names as fn(&mut Response<Body>), many_values] {
        let idempotency = layer(MemoryStore::new())
            .with_expiry_header(tower_idempotency::defaults::EXPIRY_HEADER);
        let (first, retried) = twice(idempotency, move || {
            let mut response = with(&[]);
            fill(&mut response);
            response
        })
        .await;
        assert_eq!(first.status(), StatusCode::CREATED);
        assert!(first.head.headers.len() >= MOST);
        assert_eq!(retried.rejection(), Some(RejectionKind::ResponseNotKept));
    }
}

#[tokio::test]
async fn the_marker_of_a_replay_can_have_another_name() {
    let name = HeaderName::from_static("x-replayed");
    let idempotency = layer(MemoryStore::new()).with_replay_marker(name);
    let (first, replay) = twice(idempotency, || with(&[])).await;

    assert_eq!(first.head.headers.get("x-replayed"), None);
    assert_eq!(replay.head.headers["x-replayed"], "true");
    assert!(!replay.is_replay());
}

#[tokio::test]
async fn layers_outside_write_fresh_values_onto_a_replay() {
    use tower_http::{cors::CorsLayer, set_header::SetResponseHeaderLayer};

    let runs = Runs::default();
    let request_id = SetResponseHeaderLayer::overriding(HeaderName::from_static("x-request-id"), {
        let answers = Runs::default();
        move |_: &Response<_>| HeaderValue::from_str(&answers.add().to_string()).ok()
    });
    let origins = ["https://a.example", "https://b.example"];
    let service = ServiceBuilder::new()
        .layer(request_id)
        .layer(CorsLayer::new().allow_origin(origins.map(HeaderValue::from_static)))
        .layer(layer(MemoryStore::new()))
        .service(answering(&runs, |_, _, _| {
            with(&[("x-request-id", "inner")])
        }));
    for (number, origin) in origins.into_iter().enumerate() {
        let mut request = post("k", "{}");
        let value = HeaderValue::from_static(origin);
        request.headers_mut().insert(header::ORIGIN, value);

        let answer = send(&service, request).await;

        let allowed = answer
            .head
            .headers
            .get_all(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        assert_eq!(allowed.iter().collect::<Vec<_>>(), [origin]);
        assert_eq!(
            answer.head.headers["x-request-id"],
            (number + 1).to_string()
        );
        assert_eq!(answer.is_replay(), number == 1);
    }
    assert_eq!(runs.count(), 1);
}
