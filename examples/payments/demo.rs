use std::path::Path;

use axum::http::StatusCode;
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use crate::{
    BoxError,
    client::{Answer, Server},
};

/// Charges a card three times, two of them through a crash, and counts. An error if a key has another number of charges than one.
pub(crate) async fn run() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let database = directory.path().join("payments.db");
    let keys = [0; 3].map(|_| Uuid::new_v4().to_string());
    let [ordinary, before, after] = &keys;

    println!("1. An ordinary charge");
    let server = Server::start(&database, None).await?;
    let first = charge(&server, ordinary, 1000).await?;
    let again = charge(&server, ordinary, 1000).await?;
    expect_replay(&first, &again)?;
    server.kill().await?;

    println!("\n2. The server dies right before it commits");
    crash(&database, "before-commit", before, 2000).await?;
    println!(
        "   The server starts again, and the client retries with its key. Nothing was charged, so this charges:"
    );
    let server = Server::start(&database, None).await?;
    let retried = charge(&server, before, 2000).await?;
    if retried.is_replay() {
        return Err("an answer was replayed that was never committed".into());
    }
    server.kill().await?;

    println!("\n3. The server dies right after it committed, before it answers");
    crash(&database, "after-commit", after, 3000).await?;
    println!(
        "   The server starts again, and the client retries with its key. The card was charged, so this must not charge again:"
    );
    let server = Server::start(&database, None).await?;
    let retried = charge(&server, after, 3000).await?;
    if !retried.is_replay() {
        return Err("the retry charged again".into());
    }
    server.kill().await?;

    println!("\nCharges per key, as the database has them:");
    count(&database, &keys).await
}

/// Sends a charge and tells of the answer.
async fn charge(server: &Server, key: &str, amount: u32) -> Result<Answer, BoxError> {
    println!("   POST /charges {amount} cents, Idempotency-Key: {key}");
    let answer = server.charge(key, amount).await?;
    let replayed = if answer.is_replay() {
        ", Idempotent-Replayed: true"
    } else {
        ""
    };
    println!("   -> {}{replayed}\n      {}", answer.status, answer.body);
    if answer.status != StatusCode::CREATED {
        return Err("the charge was refused".into());
    }
    Ok(answer)
}

/// Sends a charge to a server that dies of it.
async fn crash(database: &Path, point: &str, key: &str, amount: u32) -> Result<(), BoxError> {
    let server = Server::start(database, Some(point)).await?;
    println!("   POST /charges {amount} cents, Idempotency-Key: {key}");
    if server.charge(key, amount).await.is_ok() {
        return Err("the server did not die".into());
    }
    println!(
        "   -> no answer: the server is gone ({}). Was the card charged? The client can't know.",
        server.died().await?
    );
    Ok(())
}

fn expect_replay(first: &Answer, again: &Answer) -> Result<(), BoxError> {
    let same = first.status == again.status && first.body == again.body;
    if !same || !again.is_replay() {
        return Err("the retry did not get the first answer".into());
    }
    Ok(())
}

async fn count(database: &Path, keys: &[String]) -> Result<(), BoxError> {
    let mut connection =
        SqliteConnection::connect(&format!("sqlite://{}", database.display())).await?;
    let mut wrong = 0;
    for key in keys {
        let charges: i64 =
            sqlx::query_scalar("SELECT count(*) FROM charges WHERE idempotency_key = ?")
                .bind(key)
                .fetch_one(&mut connection)
                .await?;
        println!("   {key}: {charges}");
        wrong += usize::from(charges != 1);
    }
    connection.close().await?;
    if wrong > 0 {
        return Err(format!("{wrong} keys have not exactly one charge").into());
    }
    Ok(())
}
