use std::{convert::Infallible, future::pending, sync::Arc};

use tokio::{
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use super::{
    Guard,
    span::in_current_span,
    store_call::{ignore, within},
};
use crate::{
    IdempotencyContext, StoreErrorKind, event,
    store::{Claim, StoreKind},
};

/// How many renewals fall into a lease. If none of so many was answered, it is over, and one more can wait until the store has
/// answered some of what it was asked.
const IN_A_LEASE: usize = 3;

/// The renewal of a run's claim, until this is dropped.
///
/// A task of its own, started before the run's: a handler that blocks its thread, or never lets go of it for long, would
/// otherwise keep its own claim from being renewed.
pub(super) struct Renewal(AbortHandle);

impl Renewal {
    /// None for a transaction, which holds its key by itself.
    pub(super) fn start(
        guard: &Arc<Guard>,
        claim: &Arc<Claim>,
        context: &IdempotencyContext,
        from: Instant,
    ) -> Option<Self> {
        if guard.kind == StoreKind::Transaction {
            return None;
        }
        let is_inline = !guard.settings.detached;
        let (guard, claim, context) = (Arc::clone(guard), Arc::clone(claim), context.clone());
        let renewal = async move {
            let lost = || context.set_claim_lost();
            match keep_renewed(&guard, &claim, from, lost).await {}
        };
        let renewal = tokio::spawn(in_current_span(renewal));
        if is_inline {
            // A worker keeps what was spawned last for itself, where no other one can take it. Elsewhere that is the run.
            tokio::spawn(async {});
        }
        Some(Self(renewal.abort_handle()))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Renews the claim at every third of its lease, until it is lost. To be polled beside what the claim is held for.
///
/// A renewal that fails is tried again a third of the lease later; in the end the nonce decides, not the clock. One that hangs
/// is too, as another connection may do better; not without end, though.
pub(super) async fn keep_renewed(
    guard: &Arc<Guard>,
    claim: &Arc<Claim>,
    from: Instant,
    lost: impl Fn(),
) -> Infallible {
    let lease = guard.settings.lease;
    let unanswered = Arc::new(());
    let mut next = from + lease / 3;
    loop {
        sleep_until(next).await;
        next = Instant::now() + lease / 3;
        if Arc::strong_count(&unanswered) > IN_A_LEASE
            && guard.shared.late_calls.are_too_many(&guard.settings)
        {
            continue;
        }
        let (asking, renewed) = (Arc::clone(guard), Arc::clone(claim));
        let counted = Arc::clone(&unanswered);
        let renewal = async move {
            let answer = asking.store.renew(&renewed, lease).await;
            drop(counted);
            answer
        };
        let renewal = within(
            guard,
            "renew",
            guard.call_limit,
            StoreErrorKind::Unavailable,
            renewal,
            ignore,
        );
        // Boxed, as most runs end before it.
        match Box::pin(renewal).await {
            Ok(()) => {}
            Err(error) if error.kind() == StoreErrorKind::LostClaim => {
                event::claim_lost(claim.key());
                lost();
                return pending().await;
            }
            Err(error) => event::renewal_failed(claim.key(), &error),
        }
    }
}
