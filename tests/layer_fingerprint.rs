//! Another request under a used key is never answered with the first one's response.
#![cfg(feature = "memory")]

mod support;

use std::time::Duration;

use http::{HeaderName, Request, StatusCode, Uri};
use support::{
    Body, Runs,
    handler::{creating, layer},
    post, send,
};
use tower::Layer;
use tower_idempotency::{
    Fingerprint, FingerprintBy, IdempotencyKey, MemoryStore, RecordKey, RejectionKind,
    SavedResponse, Scope, Tag,
    store::{Claim, Nonce, Reservation, Store, Takeover, Terms},
};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(3600);

fn request(method: &str, uri: &str) -> Request<Body> {
    let mut request = post("k", "{}");
    *request.method_mut() = method.parse().expect("a method");
    *request.uri_mut() = uri.parse::<Uri>().expect("a target");
    request
}

/// Sends both under one key: the second is refused, and the first is still replayed.
async fn are_told_apart(by: FingerprintBy, first: Request<Body>, second: Request<Body>) {
    let runs = Runs::default();
    let service = layer(MemoryStore::new())
        .with_fingerprint(by)
        .layer(creating(&runs));
    let shown = format!(
        "{} {} / {} {}",
        first.method(),
        first.uri(),
        second.method(),
        second.uri()
    );

    assert_eq!(
        send(&service, first.clone()).await.status(),
        StatusCode::CREATED
    );
    let refused = send(&service, second).await;
    assert_eq!(
        refused.status(),
        StatusCode::UNPROCESSABLE_ENTITY,
        "{shown}"
    );
    assert_eq!(refused.rejection(), Some(RejectionKind::KeyReused));
    assert!(send(&service, first).await.is_replay(), "{shown}");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_key_belongs_to_one_method_path_and_query() {
    let pairs = [
        (("POST", "/orders"), ("POST", "/orders/7/cancel")),
        (("POST", "/x"), ("PATCH", "/x")),
        (("POST", "/x"), ("POST", "/x/")),
        (("POST", "/x?dry=1"), ("POST", "/x")),
        (("POST", "/x"), ("POST", "/x?dry=1")),
        (("POST", "/x?to=alice"), ("POST", "/x?to=mallory")),
        (("POST", "/x?a=1&b=2"), ("POST", "/x?b=2&a=1")),
        (("POST", "/x?%41"), ("POST", "/x?A")),
        (("POST", "/%41"), ("POST", "/A")),
        (("POST", "/x?a"), ("POST", "/x?a=")),
        (("POST", "/x?"), ("POST", "/x")),
    ];
    for (first, second) in pairs {
        for by in [
            FingerprintBy::exact(),
            FingerprintBy::json(),
            FingerprintBy::head_only(),
        ] {
            let (first, second) = (request(first.0, first.1), request(second.0, second.1));
            are_told_apart(by, first, second).await;
        }
    }
}

#[tokio::test]
async fn content_type_and_chosen_headers_tell_requests_apart() {
    let version = HeaderName::from_static("x-version");
    let with = |name: &'static str, value: &str| {
        let mut request = post("k", "{}");
        let value = value.parse().expect("a valid header value");
        request.headers_mut().insert(name, value);
        request
    };
    let exact = FingerprintBy::exact;
    are_told_apart(exact(), post("k", "{}"), with("content-type", "text/plain")).await;
    are_told_apart(exact(), post("k", "{}"), with("content-encoding", "gzip")).await;
    let by = exact().with_header(version);
    are_told_apart(by.clone(), with("x-version", "1"), with("x-version", "2")).await;
    are_told_apart(by, post("k", "{}"), with("x-version", "")).await;
}

/// What the mode makes of two bodies under one key.
async fn replays(by: FingerprintBy, first: &str, second: &str) -> bool {
    let runs = Runs::default();
    let service = layer(MemoryStore::new())
        .with_fingerprint(by)
        .layer(creating(&runs));
    send(&service, post("k", first)).await;
    let again = send(&service, post("k", second)).await;
    assert_eq!(runs.count(), 1);
    if !again.is_replay() {
        assert_eq!(again.rejection(), Some(RejectionKind::KeyReused));
    }
    again.is_replay()
}

#[tokio::test]
async fn json_in_another_writing_is_another_request_by_bytes_and_the_same_by_value() {
    let first = r#"{"a":1,"b":2}"#;
    for same in [
        r#"{"b":2,"a":1}"#,
        r#"{ "a": 1, "b": 2 }"#,
        "{\"\\u0061\":1,\"b\":2}",
    ] {
        assert!(
            !replays(FingerprintBy::exact(), first, same).await,
            "{same}"
        );
        assert!(replays(FingerprintBy::json(), first, same).await, "{same}");
    }
    let different = [
        (first, r#"{"a":1,"b":3}"#),
        ("[1,2]", "[2,1]"),
        ("9007199254740992", "9007199254740993"),
        ("1", "1.0"),
        (r#"{"a":1,"a":2}"#, r#"{ "a":1,"a":2}"#),
    ];
    for (first, other) in different {
        assert!(
            !replays(FingerprintBy::json(), first, other).await,
            "{other}"
        );
    }
}

#[tokio::test]
async fn a_closure_decides_what_is_the_same_content() {
    let first_line = || {
        FingerprintBy::by(|_, body| {
            body.split(|byte| *byte == b'\n')
                .next()
                .unwrap_or_default()
                .to_vec()
        })
    };
    assert!(replays(first_line(), "amount=1\ntry=1", "amount=1\ntry=2").await);
    assert!(!replays(first_line(), "amount=1\ntry=1", "amount=2\ntry=1").await);
}

#[tokio::test]
async fn an_edited_form_is_refused_and_told_that_the_first_may_have_taken_effect() {
    let runs = Runs::default();
    let service = layer(MemoryStore::new()).layer(creating(&runs));

    send(&service, post("k", "amount=1")).await;
    let edited = send(&service, post("k", "amount=2")).await;
    let original = send(&service, post("k", "amount=1")).await;

    assert_eq!(edited.rejection(), Some(RejectionKind::KeyReused));
    assert!(
        edited.text().contains("may have taken effect"),
        "{}",
        edited.text()
    );
    assert!(original.is_replay());
    assert_eq!(original.text(), "run 1: amount=1");

    assert!(replays(FingerprintBy::head_only(), "amount=1", "amount=2").await);
}

/// What another process left in the store under the key `k`.
#[derive(Clone, Copy, Debug)]
enum Left {
    Nothing,
    Running,
    LapsedLease,
    Abandoned,
    Completed,
    Tombstone,
    Expired,
}

/// Leaves it there for a request with this fingerprint.
async fn leave(store: &MemoryStore, fingerprint: Fingerprint, left: Left) {
    let key = IdempotencyKey::new("k").expect("a key");
    let key = RecordKey::derive("", &Scope::single_tenant(), &key);
    let terms = Terms::new(Nonce::random(), LEASE, RETENTION);
    if let Left::Nothing = left {
        return;
    }
    let reserved = store.reserve(&key, &fingerprint, &terms).await;
    let Reservation::Acquired(claim) = reserved.expect("a store in memory") else {
        unreachable!("the store is empty");
    };
    settle(store, &claim, left).await;
}

async fn settle(store: &MemoryStore, claim: &Claim, left: Left) {
    let saved = SavedResponse::new(
        StatusCode::CREATED,
        Default::default(),
        "run 0".into(),
        None,
    );
    match left {
        Left::Nothing | Left::Running => {}
        Left::LapsedLease => tokio::time::advance(LEASE).await,
        Left::Abandoned => store.abandon(claim, RETENTION).await.expect("a claim"),
        Left::Tombstone => {
            let tombstone = SavedResponse::tombstone();
            store
                .complete(claim, &tombstone, RETENTION)
                .await
                .expect("a claim");
        }
        Left::Completed | Left::Expired => {
            store
                .complete(claim, &saved, RETENTION)
                .await
                .expect("a claim");
        }
    }
    if let Left::Expired = left {
        tokio::time::advance(RETENTION).await;
    }
}

fn fingerprint_of(by: &FingerprintBy, request: Request<Body>, body: &str) -> Fingerprint {
    let (parts, _) = request.into_parts();
    Fingerprint::of(&by.identity(&parts, Some(body.as_bytes())))
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_is_compared_first_whatever_the_record_is() {
    use RejectionKind::{InFlight, OutcomeUnknown, ResponseNotKept};
    let cases = [
        (Left::Nothing, Takeover::Refuse, Expect::Runs),
        (Left::Running, Takeover::Refuse, Expect::Refused(InFlight)),
        (Left::Running, Takeover::RunAgain, Expect::Refused(InFlight)),
        (
            Left::LapsedLease,
            Takeover::Refuse,
            Expect::Refused(OutcomeUnknown),
        ),
        (Left::LapsedLease, Takeover::RunAgain, Expect::Runs),
        (
            Left::Abandoned,
            Takeover::Refuse,
            Expect::Refused(OutcomeUnknown),
        ),
        (Left::Abandoned, Takeover::RunAgain, Expect::Runs),
        (Left::Completed, Takeover::Refuse, Expect::Replays),
        (
            Left::Tombstone,
            Takeover::Refuse,
            Expect::Refused(ResponseNotKept),
        ),
        (Left::Expired, Takeover::Refuse, Expect::Runs),
    ];
    for (left, takeover, same) in cases {
        let other = match left {
            Left::Nothing | Left::Expired => Expect::Runs,
            Left::Running
            | Left::LapsedLease
            | Left::Abandoned
            | Left::Completed
            | Left::Tombstone => Expect::Refused(RejectionKind::KeyReused),
        };
        for (body, expected) in [("same", same), ("other", other)] {
            let (runs, store) = (Runs::default(), MemoryStore::new());
            let first = fingerprint_of(&FingerprintBy::exact(), post("k", ""), "same");
            leave(&store, first, left).await;
            let service = layer(store).with_takeover(takeover).layer(creating(&runs));

            let answer = send(&service, post("k", body)).await;

            let shown = format!("{left:?}, {takeover:?}, {body} body");
            let found = match answer.rejection() {
                Some(kind) => Expect::Refused(kind),
                None if answer.is_replay() => Expect::Replays,
                None => Expect::Runs,
            };
            assert_eq!(found, expected, "{shown}");
            assert_eq!(
                runs.count(),
                usize::from(expected == Expect::Runs),
                "{shown}"
            );
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    Runs,
    Replays,
    Refused(RejectionKind),
}

#[tokio::test]
async fn a_record_made_in_another_mode_is_compared_in_that_mode() {
    use RejectionKind::{KeyReused, StoreUnavailable};
    let exact = FingerprintBy::exact;
    let json = FingerprintBy::json;
    let head_only = FingerprintBy::head_only;
    let custom = || FingerprintBy::by(|_, body| vec![body.first().copied().unwrap_or_default()]);
    let (body, spaced, other) = ("{\"a\":1}", "{ \"a\":1}", "[]");
    let cases = [
        (json(), exact(), body, Expect::Replays),
        (json(), exact(), spaced, Expect::Replays),
        (json(), exact(), other, Expect::Refused(KeyReused)),
        (exact(), json(), body, Expect::Replays),
        (exact(), json(), spaced, Expect::Refused(KeyReused)),
        (head_only(), exact(), body, Expect::Replays),
        (head_only(), exact(), other, Expect::Replays),
        (exact(), custom(), body, Expect::Replays),
        (exact(), custom(), spaced, Expect::Refused(KeyReused)),
        // It can't be compared: the body isn't collected, or the closure is gone.
        (
            exact(),
            head_only(),
            body,
            Expect::Refused(StoreUnavailable),
        ),
        (json(), head_only(), body, Expect::Refused(StoreUnavailable)),
        (custom(), exact(), body, Expect::Refused(StoreUnavailable)),
    ];
    for (before, after, second, expected) in cases {
        let (runs, store) = (Runs::default(), MemoryStore::new());
        let shown = format!("{before:?} {after:?} {second}");
        let old = layer(store.clone()).with_fingerprint(before);
        let new = layer(store).with_fingerprint(after);
        send(&old.layer(creating(&runs)), post("k", body)).await;

        let answer = send(&new.layer(creating(&runs)), post("k", second)).await;

        match expected {
            Expect::Refused(kind) => assert_eq!(answer.rejection(), Some(kind), "{shown}"),
            Expect::Replays | Expect::Runs => assert!(answer.is_replay(), "{shown}"),
        }
        assert_eq!(runs.count(), 1, "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fingerprint_of_unknown_form_is_a_503_in_every_state() {
    for left in [
        Left::Running,
        Left::Abandoned,
        Left::Completed,
        Left::Tombstone,
    ] {
        let (runs, store) = (Runs::default(), MemoryStore::new());
        let later = Fingerprint::new(Tag::from_u16(0x0901), [7; 32]);
        leave(&store, later, left).await;
        let service = layer(store)
            .with_takeover(Takeover::RunAgain)
            .layer(creating(&runs));

        let answer = send(&service, post("k", "{}")).await;

        assert_eq!(answer.rejection(), Some(RejectionKind::StoreUnavailable));
        assert_eq!(runs.count(), 0, "{left:?}");
    }
}
