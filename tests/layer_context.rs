//! What a handler can know of its run.
#![cfg(feature = "memory")]

mod support;

use std::{convert::Infallible, time::Duration};

use http::{Request, StatusCode};
use support::{
    Body, Runs,
    handler::{answering, layer, response},
    post, send,
    spy::Spy,
};
use tokio::sync::mpsc;
use tower::{Layer, service_fn};
use tower_idempotency::{
    Drain, Fingerprint, IdempotencyContext, IdempotencyKey, IdempotencyLayer, MemoryStore,
    RecordKey, Rejection, RejectionKind, RequestBody, Scope, ScopeBy, StoreErrorKind, Tag,
    store::{Claim, Nonce, Store, Takeover},
};
use uuid::Uuid;

/// Sends one request per key, and returns what each handler saw; the handler answers `status`.
async fn contexts(
    idempotency: IdempotencyLayer,
    keys: &[&str],
    status: StatusCode,
) -> Vec<IdempotencyContext> {
    let (seen, mut contexts) = mpsc::unbounded_channel();
    let service = idempotency.layer(service_fn(move |request: Request<RequestBody<Body>>| {
        let context = request.extensions().get::<IdempotencyContext>().cloned();
        seen.send(context.expect("a context")).expect("a receiver");
        async move { Ok::<_, Infallible>(response(status, "")) }
    }));
    for key in keys {
        send(&service, post(key, "{}")).await;
    }
    let mut all = Vec::new();
    while let Ok(context) = contexts.try_recv() {
        all.push(context);
    }
    all
}

#[tokio::test]
async fn a_first_run_knows_its_key_scope_and_record() {
    let store = Spy::new();
    let scope = ScopeBy::parts(|_| Scope::new("alice"));
    let idempotency = IdempotencyLayer::new(store.clone(), scope).with_namespace("charges");

    let seen = contexts(idempotency, &["\"a\\\"b\";p=1"], StatusCode::OK).await;

    let [context] = &seen[..] else {
        panic!("one run: {seen:?}");
    };
    let key = IdempotencyKey::new("a\"b").expect("a key");
    let alice = Scope::new("alice").expect("a scope");
    assert_eq!(context.key(), &key);
    assert_eq!(context.scope(), &alice);
    assert_eq!(
        context.record_key(),
        &RecordKey::derive("charges", &alice, &key)
    );
    assert_eq!((context.attempt(), context.is_takeover()), (1, false));
    assert!(context.is_protected());
    assert!(!context.claim_lost());
    // An operator finds the record by what the client sent.
    let record = store.inspect(context.record_key()).await.expect("a store");
    assert_eq!(record.expect("a record").fence, context.fence());
}

#[tokio::test]
async fn a_takeover_sees_its_attempt_and_a_larger_fence_and_the_same_derived_key() {
    let idempotency = layer(MemoryStore::new()).with_takeover(Takeover::RunAgain);
    let failed = StatusCode::BAD_GATEWAY;

    let seen = contexts(idempotency, &["k", "k", "k"], failed).await;

    assert_eq!(seen.len(), 3);
    for (context, attempt) in seen.iter().zip(1..) {
        assert_eq!(context.attempt(), attempt);
        assert_eq!(context.is_takeover(), attempt > 1);
        assert_eq!(context.derive_key("card"), seen[0].derive_key("card"));
    }
    assert!(
        seen.windows(2)
            .all(|pair| pair[0].fence() < pair[1].fence())
    );
}

#[tokio::test]
async fn a_released_key_starts_over_with_a_larger_fence() {
    let seen = contexts(layer(MemoryStore::new()), &["k", "k"], StatusCode::CONFLICT).await;

    assert_eq!(seen.len(), 2);
    assert_eq!((seen[1].attempt(), seen[1].is_takeover()), (1, false));
    assert!(seen[0].fence() < seen[1].fence());
}

#[tokio::test]
async fn derived_keys_are_uuids_of_key_scope_and_name_and_never_change() {
    let seen = contexts(layer(MemoryStore::new()), &["k", "l"], StatusCode::OK).await;
    let other_scope =
        IdempotencyLayer::new(MemoryStore::new(), ScopeBy::parts(|_| Scope::new("b")));
    let others = contexts(other_scope, &["k"], StatusCode::OK).await;

    let derived = seen[0].derive_key("card-network");
    // Written down: a later release must give the downstream service the same key.
    assert_eq!(derived.to_string(), GOLDEN);
    assert_eq!(derived.get_version_num(), 5);
    // By its definition in RFC 9562, from the record key and the name.
    let namespace = Uuid::parse_str("6f0c2f5e-8a53-4d0b-9d3e-52a17c46e0b9").expect("a UUID");
    let text = [seen[0].record_key().as_bytes(), &b"card-network"[..]].concat();
    assert_eq!(derived, Uuid::new_v5(&namespace, &text));
    let different = [
        seen[0].derive_key("mail"),
        seen[0].derive_key(""),
        seen[1].derive_key("card-network"),
        others[0].derive_key("card-network"),
    ];
    for (number, other) in different.iter().enumerate() {
        assert_ne!(*other, derived);
        assert!(!different[..number].contains(other));
    }
}

#[tokio::test]
async fn a_derived_key_is_put_into_the_headers_in_place_of_any_other() {
    let seen = contexts(layer(MemoryStore::new()), &["k"], StatusCode::OK).await;
    let mut request = post("a key of the client's", "{}");
    let key = http::HeaderValue::from_static("another");
    request.headers_mut().append("idempotency-key", key);

    seen[0].set_derived_key("card-network", request.headers_mut());

    let keys: Vec<_> = request
        .headers()
        .get_all("idempotency-key")
        .iter()
        .collect();
    assert_eq!(keys, [GOLDEN]);
    assert!(keys[0].is_sensitive(), "no log shows it");
    // In a form that every layer of this kind takes.
    let key = tower_idempotency::KeyFormat::uuid().parse(keys[0]);
    assert_eq!(key.expect("a key").as_str(), GOLDEN);
}

const GOLDEN: &str = "6e2ceed2-2112-5774-863c-644e29f75c95";

#[tokio::test]
async fn an_unprotected_run_knows_that_it_is() {
    use support::spy::Call::Reserve;
    use tower_idempotency::OnStoreFailure::RunUnprotected;

    let down = Spy::new().failing(Reserve, StoreErrorKind::Unavailable);
    let idempotency = layer(down).with_on_store_failure(RunUnprotected);

    let seen = contexts(idempotency, &["k"], StatusCode::OK).await;

    assert!(!seen[0].is_protected());
    assert_eq!((seen[0].attempt(), seen[0].fence()), (1, 0));
}

#[tokio::test]
async fn neither_key_nor_scope_show_in_debug_output() {
    let scope = ScopeBy::parts(|_| Scope::new("alice@example.com"));
    let idempotency = IdempotencyLayer::new(MemoryStore::new(), scope);
    let seen = contexts(idempotency, &["secret-key"], StatusCode::OK).await;

    let shown = format!("{:?}", seen[0]);

    assert!(
        !shown.contains("secret-key") && !shown.contains("alice"),
        "{shown}"
    );
    assert!(shown.contains("attempt: 1"), "{shown}");
}

#[tokio::test]
async fn what_the_store_attaches_reaches_the_handler() {
    // By a store of one's own, as a transaction store hands its transaction over.
    let runs = Runs::default();
    let service = layer(attaching::Attaching::new(false)).layer(answering(&runs, |_, parts, _| {
        let attached = parts.extensions.get::<attaching::Attached>();
        response(StatusCode::OK, attached.expect("an attachment").0)
    }));

    assert_eq!(
        send(&service, post("k", "{}")).await.text(),
        "from the store"
    );
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn an_attachment_that_can_not_be_cloned_leaves_its_key_free() {
    let (runs, drain) = (Runs::default(), Drain::new());
    let service = layer(attaching::Attaching::new(true))
        .with_drain(drain.clone())
        .layer(answering(&runs, |_, _, _| response(StatusCode::OK, "done")));

    let failed = send(&service, post("k", "{}")).await;
    assert_eq!(failed.rejection(), Some(RejectionKind::HandlerFailed));
    assert_eq!(drain.wait(Duration::from_secs(60)).await, 0);
    assert_eq!(send(&service, post("k", "{}")).await.text(), "done");
    assert_eq!(runs.count(), 1);
}

mod attaching {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use async_trait::async_trait;
    use tower_idempotency::{
        Fingerprint, MemoryStore, RecordKey, SavedResponse, StoreError,
        store::{Claim, Record, Reservation, Store, StoreKind, Terms},
    };

    pub(super) struct Attached(pub(super) &'static str, bool);

    impl Clone for Attached {
        fn clone(&self) -> Self {
            assert!(!self.1, "it is fragile");
            Self(self.0, self.1)
        }
    }

    /// What it attaches to its first claim may be fragile.
    #[derive(Debug)]
    pub(super) struct Attaching(MemoryStore, AtomicBool);

    impl Attaching {
        pub(super) fn new(fragile: bool) -> Self {
            Self(MemoryStore::new(), AtomicBool::new(fragile))
        }
    }

    #[async_trait]
    impl Store for Attaching {
        async fn reserve(
            &self,
            key: &RecordKey,
            fingerprint: &Fingerprint,
            terms: &Terms,
        ) -> Result<Reservation, StoreError> {
            let reserved = self.0.reserve(key, fingerprint, terms).await?;
            let Reservation::Acquired(claim) = reserved else {
                return Ok(reserved);
            };
            let fragile = self.1.swap(false, Ordering::SeqCst);
            let claim = claim.with_attachment(Attached("from the store", fragile));
            Ok(Reservation::Acquired(claim))
        }

        async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
            self.0.renew(claim, lease).await
        }

        async fn complete(
            &self,
            claim: &Claim,
            response: &SavedResponse,
            retention: Duration,
        ) -> Result<(), StoreError> {
            assert!(claim.attachments().get::<Attached>().is_some());
            self.0.complete(claim, response, retention).await
        }

        async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
            self.0.release(claim).await
        }

        async fn abandon(&self, claim: &Claim, retention: Duration) -> Result<(), StoreError> {
            self.0.abandon(claim, retention).await
        }

        async fn inspect(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
            self.0.inspect(key).await
        }

        async fn forget(&self, key: &RecordKey) -> Result<bool, StoreError> {
            self.0.forget(key).await
        }

        async fn purge_expired(&self, limit: u32) -> Result<u64, StoreError> {
            self.0.purge_expired(limit).await
        }

        async fn ping(&self) -> Result<(), StoreError> {
            self.0.ping().await
        }

        fn kind(&self) -> StoreKind {
            self.0.kind()
        }
    }
}

#[test]
fn a_test_can_make_the_context_and_the_refusals_that_the_layer_makes() {
    let key = IdempotencyKey::new("k").expect("a key");
    let scope = Scope::new("a").expect("a scope");
    let record_key = RecordKey::derive("", &scope, &key);
    let fingerprint = Fingerprint::new(Tag::from_u16(1), [0; 32]);
    let claim = Claim::new(record_key, fingerprint, Nonce::random(), 2, 7);
    let context = IdempotencyContext::new(key, scope, &claim);

    assert_eq!((context.attempt(), context.fence()), (2, 7));
    assert!(context.is_protected() && context.is_takeover() && !context.claim_lost());
    assert_eq!(context.record_key(), &record_key);
    assert_eq!(
        Rejection::new(RejectionKind::InFlight)
            .to_response()
            .status(),
        StatusCode::CONFLICT
    );
}
