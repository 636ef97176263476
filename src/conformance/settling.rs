//! Clauses 14 to 19: how a claim ends.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::{
    Harness,
    case::{Case, LONG, random_fingerprint, response, run_again, terms},
};
use crate::{SavedResponse, store::StoreKind};

/// Clause 14.
pub async fn responses_are_replayed_exactly(harness: &dyn Harness) {
    let case = Case::new(harness, "14 responses_are_replayed_exactly");
    for response in responses() {
        let case = case.on_random_key();
        let claim = case.acquire(&terms()).await;
        case.complete(&claim, &response).await;
        case.is_replayed(&response).await;
    }
}

/// Clause 15.
pub async fn a_repeated_complete_changes_nothing(harness: &dyn Harness) {
    let case = Case::new(harness, "15 a_repeated_complete_changes_nothing");
    let claim = case.acquire(&terms()).await;
    let first = response(b"first");
    case.complete(&claim, &first).await;
    case.complete(&claim, &first).await;
    case.is_replayed(&first).await;
    let another = response(b"another");
    let repeated = case.store.complete(&claim, &another, LONG * 100).await;
    if case.store.kind() == StoreKind::Lease {
        case.ok("a repeated complete", repeated);
    }
    case.is_replayed(&first).await;
    let expires_in = case.inspect().await.map(|record| record.expires_in);
    case.check(
        expires_in.is_some_and(|left| left <= LONG),
        "the first retention",
        &expires_in,
    );
}

/// Clause 16.
pub async fn nothing_undoes_a_completion(harness: &dyn Harness) {
    let case = Case::new(harness, "16 nothing_undoes_a_completion");
    let claim = case.acquire(&terms()).await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    let answers = [
        ("release", case.store.release(&claim).await),
        ("abandon", case.store.abandon(&claim, LONG).await),
        ("renew", case.store.renew(&claim, LONG).await),
    ];
    for (call, answer) in answers {
        if case.store.kind() == StoreKind::Lease {
            case.lost(call, answer);
        }
    }
    case.is_replayed(&response).await;
}

/// Clause 17.
pub async fn a_released_key_is_free(harness: &dyn Harness) {
    let case = Case::new(harness, "17 a_released_key_is_free");
    let claim = case.acquire(&terms()).await;
    case.release(&claim).await;
    case.release(&claim).await;
    case.is_free().await;
    // Nothing of the request is left either: another one may have the key.
    let mut another = case.on(case.key);
    another.fingerprint = random_fingerprint();
    another.is_free().await;
}

/// Clause 18.
pub async fn an_abandoned_key_is_unknown(harness: &dyn Harness) {
    let case = Case::new(harness, "18 an_abandoned_key_is_unknown");
    let claim = case.acquire(&terms()).await;
    case.abandon(&claim).await;
    case.is_unknown().await;
    case.abandon(&claim).await;
    case.is_unknown().await;
    let second = case.acquire(&run_again()).await;
    case.check(second.attempt() == 2, "attempt 2", &second);
    case.is_in_flight().await;
}

/// Clause 19.
pub async fn an_abandoned_claim_is_settled(harness: &dyn Harness) {
    let case = Case::new(harness, "19 an_abandoned_claim_is_settled");
    let claim = case.acquire(&terms()).await;
    case.abandon(&claim).await;
    case.lost("renew", case.store.renew(&claim, LONG).await);
    let completed = case.store.complete(&claim, &response(b"late"), LONG).await;
    case.lost("complete", completed);
    case.lost("release", case.store.release(&claim).await);
    case.is_unknown().await;
}

fn responses() -> Vec<SavedResponse> {
    let new = |status, headers: &HeaderMap, body: &[u8], trailers: Option<&HeaderMap>| {
        let body = Bytes::copy_from_slice(body);
        SavedResponse::new(status, headers.clone(), body, trailers.cloned())
    };
    let none = HeaderMap::new();
    let mut headers = HeaderMap::new();
    headers.insert(header::LOCATION, HeaderValue::from_static("/charges/1"));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    headers.append(header::VARY, HeaderValue::from_static("accept"));
    headers.append(header::ETAG, HeaderValue::from_static(""));
    // Bytes above 0x7f are valid in a header value, and no UTF-8.
    headers.extend(HeaderValue::from_bytes(b"\xe4\xff").map(|value| (header::WARNING, value)));
    let binary: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = binary.iter().copied().cycle().take(1 << 20).collect();
    vec![
        SavedResponse::tombstone(),
        new(StatusCode::NO_CONTENT, &none, b"", None),
        new(StatusCode::OK, &headers, b"", None),
        new(StatusCode::CREATED, &headers, br#"{"b":1, "a":1.0}"#, None),
        new(StatusCode::SEE_OTHER, &headers, &binary, None),
        new(StatusCode::OK, &none, b"with trailers", Some(&headers)),
        new(StatusCode::OK, &none, b"with empty ones", Some(&none)),
        new(StatusCode::OK, &none, &large, None),
    ]
}
