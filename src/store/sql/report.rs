//! What an operator should hear of, with feature `tracing`.

use crate::{StoreError, store::Claim};

/// The handler never took its transaction: its writes went elsewhere, and weren't protected.
#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "said nowhere")
)]
pub(crate) fn report_unused(claim: &Claim) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        record_key = ?claim.key(),
        "the handler didn't use its transaction: what it wrote elsewhere isn't covered by the key",
    );
}

/// The handler ended the transaction by itself, and that couldn't be recorded: a retry runs again.
#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "said nowhere")
)]
pub(crate) fn report_unknown_not_written(claim: &Claim, error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::error!(
        record_key = ?claim.key(),
        error = %error,
        "the handler ended its transaction by itself, and that couldn't be recorded",
    );
}
