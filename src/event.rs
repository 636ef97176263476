//! What an operator may want to know of the layer and the purger, as events of feature `tracing`. Keys appear as their short digest
//! only. A store's own events are told where they come about. `docs/observability.md` has the table of all, and what to do about each.

use crate::{RecordKey, StoreError};

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
    warn reserve_failed(record_key: &RecordKey = short(record_key), error: &StoreError = source(error)) "the store failed to reserve a key";
    warn inspect_failed(record_key: &RecordKey = short(record_key), error: &StoreError = source(error)) "the store failed to tell what is recorded";
    warn unprotected(record_key: &RecordKey = short(record_key)) "the handler runs unprotected";
    warn settled_unprotected(record_key: &RecordKey = short(record_key), saved: bool = saved) "an unprotected run ended";
    warn takeover(record_key: &RecordKey = short(record_key)) "a run of unknown outcome is taken over";
    warn claim_lost(record_key: &RecordKey = short(record_key)) "the claim was taken over, the run goes on";
    warn renewal_failed(record_key: &RecordKey = short(record_key), error: &StoreError = source(error)) "the claim was not renewed";
    warn settlement_failed(record_key: &RecordKey = short(record_key), error: &StoreError = source(error)) "the claim was not settled";
    warn notes_failed(record_key: &RecordKey = short(record_key), error: &StoreError = source(error)) "the store failed to tell what an earlier run has done";
    warn not_noted(record_key: &RecordKey = short(record_key), error: &StoreError = source(error)) "a step was done and is not noted";
    info run_again(record_key: &RecordKey = short(record_key), retry: u32 = retry) "the transaction lost against another one, the handler runs again";
    warn purge_failed(error: &StoreError = source(error)) "expired records were not purged";
    debug purged(count: u64 = count) "expired records were purged";
    error outcome_pending(record_key: &RecordKey = short(record_key)) "whether the operation took effect is not known yet";
    info not_kept(record_key: &RecordKey = short(record_key), reason: &'static str = reason) "the response is not kept";
}

/// The short digest.
#[cfg(feature = "tracing")]
fn short(record_key: &RecordKey) -> tracing::field::DebugValue<&RecordKey> {
    tracing::field::debug(record_key)
}

/// The form that keeps the error's own sources for a subscriber.
#[cfg(feature = "tracing")]
fn source(error: &StoreError) -> &(dyn std::error::Error + 'static) {
    error
}
