use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Charge {
    pub(crate) id: String,
    pub(crate) amount: i64,
    pub(crate) currency: String,
    pub(crate) account: String,
}

#[derive(Serialize)]
pub(crate) struct Refund {
    pub(crate) id: String,
    pub(crate) charge: String,
    pub(crate) amount: i64,
}

/// What a charge is found by.
pub(crate) enum ChargeBy<'a> {
    Id(&'a str),
    /// The idempotency key that it was made under.
    Key(&'a str),
}

/// A charge as it comes from the database.
pub(crate) type ChargeRow = (String, i64, String, String);

impl From<ChargeRow> for Charge {
    fn from((id, amount, currency, account): ChargeRow) -> Self {
        Self {
            id,
            amount,
            currency,
            account,
        }
    }
}
