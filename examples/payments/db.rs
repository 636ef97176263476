use std::{str::FromStr, time::Duration};

use serde::Serialize;
use sqlx::{
    SqliteConnection, SqliteExecutor, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

/// How long a charge waits for those before it. They run one after the other, and some take two seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

const SCHEMA: &str = include_str!("schema.sql");

#[derive(Serialize)]
pub(crate) struct Charge {
    pub(crate) id: String,
    pub(crate) amount: u32,
    pub(crate) currency: String,
    pub(crate) account: String,
}

#[derive(Serialize)]
pub(crate) struct Refund {
    pub(crate) id: String,
    pub(crate) charge: String,
    pub(crate) amount: u32,
}

/// With a write-ahead log, so that others read while a charge runs.
pub(crate) async fn open(url: &str) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .foreign_keys(true)
        .busy_timeout(PATIENCE);
    let pool = SqlitePoolOptions::new()
        .acquire_timeout(PATIENCE)
        .connect_with(options)
        .await?;
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    Ok(pool)
}

pub(crate) async fn insert_charge(
    tx: &mut SqliteConnection,
    charge: &Charge,
    key: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO charges (id, idempotency_key, account, amount, currency) VALUES (?, ?, ?, ?, ?)")
        .bind(&charge.id)
        .bind(key)
        .bind(&charge.account)
        .bind(charge.amount)
        .bind(&charge.currency)
        .execute(tx)
        .await?;
    Ok(())
}

pub(crate) async fn charges(pool: &SqlitePool, account: &str) -> Result<Vec<Charge>, sqlx::Error> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT id, amount, currency, account FROM charges WHERE account = ? ORDER BY rowid",
    )
    .bind(account)
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(Charge::from).collect())
}

pub(crate) async fn charge(
    executor: impl SqliteExecutor<'_>,
    account: &str,
    id: &str,
) -> Result<Option<Charge>, sqlx::Error> {
    let row: Option<Row> = sqlx::query_as(
        "SELECT id, amount, currency, account FROM charges WHERE account = ? AND id = ?",
    )
    .bind(account)
    .bind(id)
    .fetch_optional(executor)
    .await?;
    Ok(row.map(Charge::from))
}

/// False if the charge was refunded before.
pub(crate) async fn insert_refund(
    tx: &mut SqliteConnection,
    refund: &Refund,
) -> Result<bool, sqlx::Error> {
    let inserted = sqlx::query(
        "INSERT INTO refunds (id, charge, amount) VALUES (?, ?, ?) ON CONFLICT (charge) DO NOTHING",
    )
    .bind(&refund.id)
    .bind(&refund.charge)
    .bind(refund.amount)
    .execute(tx)
    .await?;
    Ok(inserted.rows_affected() > 0)
}

type Row = (String, u32, String, String);

impl From<Row> for Charge {
    fn from((id, amount, currency, account): Row) -> Self {
        Self {
            id,
            amount,
            currency,
            account,
        }
    }
}
