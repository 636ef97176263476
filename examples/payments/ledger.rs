use async_trait::async_trait;
use sqlx::{Database, Encode, Error, Executor, FromRow, IntoArguments, QueryBuilder, Type};

use crate::charge::{Charge, ChargeBy, ChargeRow, Refund};

/// A database that charges are kept in: what the handlers ask of it.
#[async_trait]
pub(crate) trait Ledger: Database {
    async fn insert_charge(
        tx: &mut Self::Connection,
        charge: &Charge,
        key: &str,
    ) -> Result<(), Error>;

    /// In the order in which they were made.
    async fn charges(
        connection: &mut Self::Connection,
        account: &str,
    ) -> Result<Vec<Charge>, Error>;

    async fn charge(
        connection: &mut Self::Connection,
        account: &str,
        by: ChargeBy<'_>,
    ) -> Result<Option<Charge>, Error>;

    async fn has_refund(connection: &mut Self::Connection, id: &str) -> Result<bool, Error>;

    /// False if the charge was refunded before.
    async fn insert_refund(tx: &mut Self::Connection, refund: &Refund) -> Result<bool, Error>;
}

/// The statements are the same for all databases, only their placeholders differ. The bounds are what sqlx needs to send them.
#[async_trait]
impl<DB> Ledger for DB
where
    DB: Database,
    DB::Arguments: IntoArguments<DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
    for<'r> ChargeRow: FromRow<'r, DB::Row>,
{
    async fn insert_charge(
        tx: &mut DB::Connection,
        charge: &Charge,
        key: &str,
    ) -> Result<(), Error> {
        let mut insert = QueryBuilder::new(
            "INSERT INTO charges (id, idempotency_key, account, amount, currency) VALUES (",
        );
        insert
            .separated(", ")
            .push_bind(charge.id.as_str())
            .push_bind(key)
            .push_bind(charge.account.as_str())
            .push_bind(charge.amount)
            .push_bind(charge.currency.as_str())
            .push_unseparated(")");
        insert.build().execute(tx).await?;
        Ok(())
    }

    async fn charges(connection: &mut DB::Connection, account: &str) -> Result<Vec<Charge>, Error> {
        let rows: Vec<ChargeRow> =
            QueryBuilder::new("SELECT id, amount, currency, account FROM charges WHERE account = ")
                .push_bind(account)
                .push(" ORDER BY number")
                .build_query_as()
                .fetch_all(connection)
                .await?;
        Ok(rows.into_iter().map(Charge::from).collect())
    }

    async fn charge(
        connection: &mut DB::Connection,
        account: &str,
        by: ChargeBy<'_>,
    ) -> Result<Option<Charge>, Error> {
        let (column, value) = match by {
            ChargeBy::Id(id) => (" AND id = ", id),
            ChargeBy::Key(key) => (" AND idempotency_key = ", key),
        };
        let row: Option<ChargeRow> =
            QueryBuilder::new("SELECT id, amount, currency, account FROM charges WHERE account = ")
                .push_bind(account)
                .push(column)
                .push_bind(value)
                .build_query_as()
                .fetch_optional(connection)
                .await?;
        Ok(row.map(Charge::from))
    }

    async fn has_refund(connection: &mut DB::Connection, id: &str) -> Result<bool, Error> {
        let mut query = QueryBuilder::new("SELECT 1 FROM refunds WHERE id = ");
        let row = query.push_bind(id).build().fetch_optional(connection).await;
        Ok(row?.is_some())
    }

    async fn insert_refund(tx: &mut DB::Connection, refund: &Refund) -> Result<bool, Error> {
        let mut insert = QueryBuilder::new("INSERT INTO refunds (id, charge, amount) VALUES (");
        insert
            .separated(", ")
            .push_bind(refund.id.as_str())
            .push_bind(refund.charge.as_str())
            .push_bind(refund.amount)
            .push_unseparated(")");
        match insert.build().execute(tx).await {
            Ok(_) => Ok(true),
            Err(Error::Database(error)) if error.is_unique_violation() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
