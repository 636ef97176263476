use std::{convert::Infallible, future::pending, sync::Arc};

use tokio::time::{Instant, sleep_until};

use super::{
    Guard,
    renewals::{Held, Place},
    span::RequestSpan,
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
/// A task of its own from when it is first due: a handler that blocks its thread, or never lets go of it for long, would
/// otherwise keep its own claim from being renewed. Most runs end before, and need none.
pub(super) struct Renewal {
    _place: Place,
}

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
        let held = Held {
            guard: Arc::clone(guard),
            claim: Arc::clone(claim),
            context: context.clone(),
            from,
            span: RequestSpan::current(),
        };
        let due = from + guard.settings.lease / 3;
        Some(Self {
            _place: guard.shared.renewals.hold(due, held),
        })
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
    // A transaction holds its key by itself.
    if guard.kind == StoreKind::Transaction {
        return pending().await;
    }
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
        match within(
            guard,
            "renew",
            guard.call_limit,
            StoreErrorKind::Unavailable,
            renewal,
            ignore,
        )
        .await
        {
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
