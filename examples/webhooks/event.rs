use axum::{Json, http::StatusCode};
use serde::Deserialize;
use sqlx::Sqlite;
use tower_idempotency::Tx;

type Failure = (StatusCode, String);

/// What makes two deliveries the same.
pub(crate) fn id(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Event {
        id: String,
    }
    let event: Event = serde_json::from_slice(body).ok()?;
    Some(event.id)
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Event {
    Account { account: String },
    Payment { account: String, amount: i64 },
}

pub(crate) async fn receive(
    mut tx: Tx<Sqlite>,
    Json(event): Json<Event>,
) -> Result<String, Failure> {
    let (account, amount) = match event {
        Event::Account { account } => {
            let open = sqlx::query("INSERT INTO accounts (name) VALUES (?) ON CONFLICT DO NOTHING");
            let open = open.bind(&account).execute(&mut *tx).await;
            return open
                .map(|_opened| format!("{account} is here"))
                .map_err(internal);
        }
        Event::Payment { account, amount } => (account, amount),
    };
    // Before the account is looked for, to show that nothing stays of what fails.
    let pay = sqlx::query("INSERT INTO payments (account, amount) VALUES (?, ?)").bind(&account);
    pay.bind(amount).execute(&mut *tx).await.map_err(internal)?;
    let add = "UPDATE accounts SET balance = balance + ? WHERE name = ? RETURNING balance";
    let add = sqlx::query_scalar(add).bind(amount).bind(&account);
    let balance: Option<i64> = add.fetch_optional(&mut *tx).await.map_err(internal)?;
    // Events come in any order. What can't be done yet is not done, and asked for again.
    let not_yet = (
        StatusCode::SERVICE_UNAVAILABLE,
        "no such account yet".to_owned(),
    );
    let balance = balance.ok_or(not_yet)?;
    Ok(format!("{account} has {balance}"))
}

fn internal(error: sqlx::Error) -> Failure {
    eprintln!("{error}");
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error".into())
}
