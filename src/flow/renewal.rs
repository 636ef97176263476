use std::{convert::Infallible, future::pending, sync::Arc};

use tokio::time::{Instant, sleep_until};

use super::{
    Guard,
    store_call::{ignore, within},
};
use crate::{
    StoreErrorKind, event,
    store::{Claim, StoreKind},
};

/// Renews the claim at every third of its lease, until it is lost. To be polled beside what the claim is held for.
///
/// A renewal that fails is tried again a third of the lease later; in the end the nonce decides, not the clock.
pub(super) async fn keep_renewed(
    guard: &Guard,
    claim: &Arc<Claim>,
    from: Instant,
    lost: impl Fn(),
) -> Infallible {
    // A transaction holds its key by itself.
    if guard.kind == StoreKind::Transaction {
        return pending().await;
    }
    let lease = guard.settings.lease;
    let mut next = from + lease / 3;
    loop {
        sleep_until(next).await;
        next = Instant::now() + lease / 3;
        let (store, renewed) = (Arc::clone(&guard.store), Arc::clone(claim));
        let renewal = async move { store.renew(&renewed, lease).await };
        match within(
            guard.call_limit,
            StoreErrorKind::Unavailable,
            renewal,
            ignore,
        )
        .await
        {
            Ok(()) => {}
            Err(error) if error.kind() == StoreErrorKind::LostClaim => {
                event::claim_lost(claim);
                lost();
                return pending().await;
            }
            Err(error) => event::renewal_failed(claim, &error),
        }
    }
}
