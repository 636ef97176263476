//! Clauses 9, 20 to 22 and 42: what is particular to transaction stores.

use super::{
    Harness,
    case::{Case, LONG, response, terms},
};
use crate::{
    StoreErrorKind,
    store::{Reservation, StoreKind},
};

/// Clause 9.
pub async fn a_repeated_reserve_is_in_flight(harness: &dyn Harness) {
    let case = Case::new(harness, "9 a_repeated_reserve_is_in_flight");
    let terms = terms();
    let claim = case.acquire(&terms).await;
    match case.reserve(&terms).await {
        Reservation::InFlight { .. } => {}
        other => case.broken("InFlight", &other),
    }
    case.release(&claim).await;
}

/// Clause 20.
pub async fn an_abandoned_run_is_rolled_back(harness: &dyn Harness) {
    let case = Case::new(harness, "20 an_abandoned_run_is_rolled_back");
    let claim = case.acquire(&terms()).await;
    case.abandon(&claim).await;
    case.abandon(&claim).await;
    case.release(&claim).await;
    case.is_free().await;
}

/// Clause 21.
pub async fn a_rolled_back_claim_cant_complete(harness: &dyn Harness) {
    let case = Case::new(harness, "21 a_rolled_back_claim_cant_complete");
    let claim = case.acquire(&terms()).await;
    case.release(&claim).await;
    let completed = case.store.complete(&claim, &response(b"late"), LONG).await;
    case.fails("complete", completed, StoreErrorKind::RolledBack);
    case.is_free().await;
}

/// Clause 22.
pub async fn renewing_a_transaction_is_ok(harness: &dyn Harness) {
    let case = Case::new(harness, "22 renewing_a_transaction_is_ok");
    let claim = case.acquire(&terms()).await;
    case.ok("renew", case.store.renew(&claim, LONG).await);
    case.is_in_flight().await;
    let response = response(b"first");
    case.complete(&claim, &response).await;
    case.is_replayed(&response).await;
}

/// Clause 42.
pub async fn a_transaction_store_says_so(harness: &dyn Harness) {
    let case = Case::new(harness, "42 a_transaction_store_says_so");
    let kind = case.store.kind();
    case.check(
        kind == StoreKind::Transaction,
        StoreKind::Transaction,
        &kind,
    );
}
