use std::num::NonZeroU32;

use serde::Deserialize;

/// What a client asks for. What doesn't fit these types is refused with 422 by [`Json`](crate::problem::Json).
#[derive(Deserialize)]
pub(crate) struct Order {
    /// In cents.
    pub(crate) amount: NonZeroU32,
    pub(crate) currency: Currency,
    pub(crate) card: Card,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Currency {
    Eur,
    Gbp,
    Usd,
}

impl Currency {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Eur => "eur",
            Self::Gbp => "gbp",
            Self::Usd => "usd",
        }
    }
}

/// Test cards, in the manner of payment providers.
#[derive(Clone, Copy, Deserialize)]
pub(crate) enum Card {
    #[serde(rename = "tok_visa")]
    Visa,
    /// Takes two seconds before anything is written.
    #[serde(rename = "tok_slow")]
    Slow,
    #[serde(rename = "tok_declined")]
    Declined,
    /// Fails after the charge was written.
    #[serde(rename = "tok_error")]
    Error,
    /// Panics after the charge was written.
    #[serde(rename = "tok_panic")]
    Panic,
}

#[derive(Deserialize)]
pub(crate) struct RefundOrder {
    /// The id of a charge.
    pub(crate) charge: String,
}
