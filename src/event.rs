//! What an operator may want to know, as events of feature `tracing`. Keys appear as their short digest only.

use crate::{RecordKey, StoreError, store::Claim};

/// Defines each event as a function, which is empty without the feature.
macro_rules! events {
    ($($level:ident $name:ident($($field:ident: $type:ty = $value:expr),*) $message:literal;)*) => {$(
        #[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "they are for the event"))]
        pub(crate) fn $name($($field: $type),*) {
            #[cfg(feature = "tracing")]
            tracing::$level!($($field = $value,)* $message);
        }
    )*};
}

events! {
    warn reserve_failed(key: &RecordKey = tracing::field::debug(key), error: &StoreError = error as &(dyn std::error::Error + 'static)) "the store failed to reserve a key";
    warn unprotected(key: &RecordKey = tracing::field::debug(key)) "the handler runs unprotected";
    warn settled_unprotected(claim: &Claim = tracing::field::debug(claim.key()), saved: bool = saved) "an unprotected run ended";
    warn takeover(claim: &Claim = tracing::field::debug(claim.key())) "a run of unknown outcome is taken over";
    warn claim_lost(claim: &Claim = tracing::field::debug(claim.key())) "the claim was taken over, the run goes on";
    warn renewal_failed(claim: &Claim = tracing::field::debug(claim.key()), error: &StoreError = error as &(dyn std::error::Error + 'static)) "the claim was not renewed";
    warn settlement_failed(claim: &Claim = tracing::field::debug(claim.key()), error: &StoreError = error as &(dyn std::error::Error + 'static)) "the claim was not settled";
    info run_again(key: &RecordKey = tracing::field::debug(key), retry: u32 = retry) "the transaction lost against another one, the handler runs again";
    warn purge_failed(error: &StoreError = error as &(dyn std::error::Error + 'static)) "expired records were not purged";
    debug purged(count: u64 = count) "expired records were purged";
    error outcome_pending(claim: &Claim = tracing::field::debug(claim.key())) "whether the transaction was committed is not known";
    info not_kept(key: &RecordKey = tracing::field::debug(key)) "the response is too large, too slow or a stream: it is not kept";
}
