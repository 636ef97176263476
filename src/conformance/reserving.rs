//! Clauses 1 to 13: what `reserve` finds, and in which order.

use super::{
    Harness,
    case::{Case, LONG, SHORT, response, run_again, terms, terms_of},
    race,
};
use crate::{
    RecordKey,
    store::{Claim, Terms},
};

/// Clause 1.
pub async fn a_new_key_is_acquired(harness: &dyn Harness) {
    let case = Case::new(harness, "1 a_new_key_is_acquired");
    let terms = terms();
    let claim = case.acquire(&terms).await;
    case.check(claim.attempt() == 1, "attempt 1", &claim);
    case.check(*claim.key() == case.key, case.key, &claim);
    case.check(
        *claim.fingerprint() == case.fingerprint,
        case.fingerprint,
        &claim,
    );
    case.check(claim.nonce() == terms.nonce(), terms.nonce(), &claim);
    case.release(&claim).await;
}

/// Clause 2.
pub async fn one_of_many_claimers_acquires(harness: &dyn Harness) {
    let case = Case::new(harness, "2 one_of_many_claimers_acquires");
    for claimers in [2, 5, 20] {
        race::with_a_hanging_winner(&case.on_random_key(), claimers).await;
        race::with_a_completing_winner(&case.on_random_key(), claimers).await;
    }
}

/// Clause 3.
pub async fn every_byte_of_a_key_counts(harness: &dyn Harness) {
    let case = Case::new(harness, "3 every_byte_of_a_key_counts");
    let key = *case.key.as_bytes();
    // Random but for its end, which must not become one of those below when a bit of it is flipped.
    let key = with_byte(key, key.len() - 1, |_| b'U');
    let flipped = (0..key.len()).map(|position| with_byte(key, position, |byte| byte ^ 0x20));
    let ended = [0x00, 0x20, b'a', b'A'].map(|end| with_byte(key, key.len() - 1, |_| end));
    let mut cases = Vec::new();
    for key in flipped.chain(ended) {
        let case = case.on(RecordKey::from_bytes(key));
        let response = case.completed().await;
        cases.push((case, response));
    }
    for (case, response) in cases {
        case.is_replayed(&response).await;
    }
}

/// Clause 4.
pub async fn a_running_key_is_in_flight(harness: &dyn Harness) {
    let case = Case::new(harness, "4 a_running_key_is_in_flight");
    let claim = case.acquire(&terms()).await;
    case.is_in_flight().await;
    case.is_in_flight().await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    case.is_replayed(&response).await;
}

/// Clause 5.
pub async fn another_request_is_a_mismatch(harness: &dyn Harness) {
    let case = Case::new(harness, "5 another_request_is_a_mismatch");
    let claim = case.acquire(&terms()).await;
    case.is_a_mismatch(&terms()).await;
    case.is_a_mismatch(&run_again()).await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    case.is_a_mismatch(&terms()).await;
    case.is_a_mismatch(&run_again()).await;
    case.is_replayed(&response).await;
}

/// Clause 6.
pub async fn another_request_takes_nothing_over(harness: &dyn Harness) {
    let case = Case::new(harness, "6 another_request_takes_nothing_over");
    let abandoned = case.on_random_key();
    case.acquire(&terms_of(SHORT, LONG)).await;
    let claim = abandoned.acquire(&terms()).await;
    abandoned.abandon(&claim).await;
    harness.pass(SHORT * 2).await;
    for case in [case, abandoned] {
        case.is_a_mismatch(&terms()).await;
        case.is_a_mismatch(&run_again()).await;
        case.is_unknown().await;
    }
}

/// Clause 7.
pub async fn a_completed_key_is_replayed(harness: &dyn Harness) {
    let case = Case::new(harness, "7 a_completed_key_is_replayed");
    let first = terms();
    let claim = case.acquire(&first).await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    case.is_replayed(&response).await;
    case.replays(&first, &response).await;
    case.replays(&run_again(), &response).await;
}

/// Clause 8.
pub async fn a_repeated_reserve_is_the_same_claim(harness: &dyn Harness) {
    let case = Case::new(harness, "8 a_repeated_reserve_is_the_same_claim");
    let terms = terms_of(SHORT, LONG);
    let first = case.acquire(&terms).await;
    harness.pass(SHORT * 2).await;
    // The lease that was over counts anew, and is long enough now for the next check on any machine.
    let longer = Terms::new(terms.nonce(), LONG, LONG);
    let again = case.acquire(&longer).await;
    let same = |claim: &Claim| (claim.nonce(), claim.attempt(), claim.fence());
    case.check(same(&again) == same(&first), &first, &again);
    case.is_in_flight().await;
    case.release(&again).await;
}

/// Clause 10.
pub async fn a_lapsed_claim_is_unknown_under_refuse(harness: &dyn Harness) {
    let case = Case::new(harness, "10 a_lapsed_claim_is_unknown_under_refuse");
    case.acquire(&terms_of(SHORT, LONG)).await;
    harness.pass(SHORT).await;
    case.is_unknown().await;
    case.is_unknown().await;
}

/// Clause 11.
pub async fn a_lapsed_claim_is_taken_over_under_run_again(harness: &dyn Harness) {
    let case = Case::new(harness, "11 a_lapsed_claim_is_taken_over_under_run_again");
    case.acquire(&terms_of(SHORT, LONG)).await;
    harness.pass(SHORT).await;
    let terms = run_again();
    let second = case.acquire(&terms).await;
    case.check(second.attempt() == 2, "attempt 2", &second);
    case.check(second.nonce() == terms.nonce(), terms.nonce(), &second);
    case.is_in_flight().await;
    case.abandon(&second).await;
    let third = case.acquire(&run_again()).await;
    case.check(third.attempt() == 3, "attempt 3", &third);
}

/// Clause 12.
pub async fn the_fence_only_grows(harness: &dyn Harness) {
    let case = Case::new(harness, "12 the_fence_only_grows");
    let mut last = None;
    for _ in 0..3 {
        let claim = case.acquire(&terms()).await;
        let fence = Some(claim.fence());
        case.check(fence > last, format_args!("more than {last:?}"), &fence);
        last = fence;
        case.release(&claim).await;
        // The record and its fence are gone: only the clock can tell the next claim to be larger.
        harness.pass(SHORT).await;
    }
}

/// Clause 13.
pub async fn the_fence_grows_with_a_takeover(harness: &dyn Harness) {
    let case = Case::new(harness, "13 the_fence_grows_with_a_takeover");
    let mut claim = case.acquire(&terms()).await;
    for _ in 0..3 {
        case.abandon(&claim).await;
        let next = case.acquire(&run_again()).await;
        case.check(next.fence() > claim.fence(), &claim, &next);
        claim = next;
    }
}

fn with_byte(mut key: [u8; 32], position: usize, change: impl Fn(u8) -> u8) -> [u8; 32] {
    if let Some(byte) = key.get_mut(position) {
        *byte = change(*byte);
    }
    key
}
