use std::pin::Pin;

use sqlx::{Row, Sqlite, SqlitePool};
use tonic::{
    Request, Response, Status, async_trait,
    codegen::tokio_stream::{Stream, iter},
};
use tower_idempotency::{IdempotencyContext, Tx};

use crate::payments::{ChargeRequest, Charged, ListChargesRequest, payments_server::Payments};

pub(crate) struct Service {
    pool: SqlitePool,
}

impl Service {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl Payments for Service {
    /// What it writes commits with its reply, and is rolled back if it answers with a `Status`.
    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Charged>, Status> {
        let mut tx = Tx::<Sqlite>::take(request.extensions())
            .map_err(|error| Status::internal(error.to_string()))?;
        let context = request.extensions().get::<IdempotencyContext>();
        let account = context.ok_or_else(|| Status::internal("no key"))?.scope();
        let account = String::from_utf8_lossy(account.as_bytes()).into_owned();
        let order = request.into_inner();
        if order.amount <= 0 {
            return Err(Status::invalid_argument("the amount must be above zero"));
        }
        let insert = sqlx::query(
            "INSERT INTO charges (account, amount, currency) VALUES (?, ?, ?) RETURNING id",
        );
        let row = insert
            .bind(account)
            .bind(order.amount)
            .bind(&order.currency)
            .fetch_one(&mut *tx)
            .await
            .map_err(internal)?;
        // Too late for a real service; here it shows that the charge is rolled back.
        if order.card == "tok_declined" {
            return Err(Status::failed_precondition("the card was declined"));
        }
        Ok(Response::new(Charged {
            id: row.get("id"),
            amount: order.amount,
            currency: order.currency,
        }))
    }

    type ListChargesStream = Pin<Box<dyn Stream<Item = Result<Charged, Status>> + Send>>;

    async fn list_charges(
        &self,
        request: Request<ListChargesRequest>,
    ) -> Result<Response<Self::ListChargesStream>, Status> {
        let account = request.metadata().get("x-account");
        let account = account.and_then(|account| account.to_str().ok());
        let account = account.ok_or_else(|| Status::unauthenticated("no account"))?;
        let select =
            sqlx::query("SELECT id, amount, currency FROM charges WHERE account = ? ORDER BY id");
        let rows = select.bind(account).fetch_all(&self.pool).await;
        let charges = rows.map_err(internal)?.into_iter().map(|row| {
            Ok(Charged {
                id: row.get("id"),
                amount: row.get("amount"),
                currency: row.get("currency"),
            })
        });
        Ok(Response::new(Box::pin(iter(charges))))
    }
}

/// What the database says is not for clients.
fn internal(error: sqlx::Error) -> Status {
    eprintln!("the database failed: {error}");
    Status::internal("the database failed")
}
