use axum::{Extension, http::StatusCode, response::Json as JsonBody};
use tower_idempotency::IdempotencyContext;

use crate::{
    auth::Account,
    charge::{ChargeBy, Refund},
    ledger::Ledger,
    order::RefundOrder,
    problem::{Json, Problem},
    transaction::Transaction,
};

/// The id is made of the key, so that a run finds what a run before it did.
pub(crate) async fn refund<DB: Ledger>(
    Extension(account): Extension<Account>,
    context: IdempotencyContext,
    mut tx: Transaction<DB>,
    Json(order): Json<RefundOrder>,
) -> Result<(StatusCode, JsonBody<Refund>), Problem> {
    let charge = DB::charge(&mut tx, &account.0, ChargeBy::Id(&order.charge)).await?;
    let charge = charge.ok_or_else(Problem::no_such_charge)?;
    let refund = Refund {
        id: context.derive_key("refund").to_string(),
        charge: charge.id,
        amount: charge.amount,
    };
    let done = context.is_takeover() && DB::has_refund(&mut tx, &refund.id).await?;
    if !done && !DB::insert_refund(&mut tx, &refund).await? {
        return Err(Problem::already_refunded());
    }
    tx.commit(&context).await?;
    Ok((StatusCode::CREATED, JsonBody(refund)))
}
