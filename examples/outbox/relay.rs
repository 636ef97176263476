use std::time::Duration;

use reqwest::{Client, header, redirect};
use sqlx::SqlitePool;
use tokio::time::sleep;

use crate::{BoxError, database, setting};

/// How long a relay has for a delivery, until another one may try.
const CLAIM: Duration = Duration::from_secs(30);

/// Between two looks into an empty outbox.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a mail is tried again: less than the mail service remembers its key, which is a day. What is older is for a person to
/// look at, since it may have been sent.
const RETRIED: Duration = Duration::from_secs(20 * 60 * 60);

struct Mail {
    key: String,
    text: String,
}

/// Delivers what is in the outbox, at least once, for ever.
pub(crate) async fn run() -> Result<(), BoxError> {
    let pool = database::shop().await?;
    let address = setting("MAIL_ADDR", "127.0.0.1:3001");
    let mails = setting("MAIL_URL", &format!("http://{address}")) + "/mails";
    // A delivery is over before its claim is. If it weren't, two would have one key, and still be one mail.
    let client = Client::builder()
        .timeout(CLAIM / 2)
        .redirect(redirect::Policy::none())
        .build()?;
    loop {
        match next(&pool).await {
            Ok(Some(mail)) => {
                // What failed is tried again when its claim has ended.
                if let Err(error) = deliver(&client, &mails, &pool, &mail).await {
                    eprintln!("relay: mail {}: {error}", mail.key);
                }
            }
            Ok(None) => sleep(PAUSE).await,
            Err(error) => {
                eprintln!("relay: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Claims a mail, so that relays don't all deliver the same one.
async fn next(pool: &SqlitePool) -> Result<Option<Mail>, sqlx::Error> {
    const DUE: &str = "SELECT key, mail, claimed_until FROM outbox
        WHERE delivered IS NULL AND claimed_until <= unixepoch() AND coalesce(first_sent > unixepoch() - ?, TRUE)
        ORDER BY claimed_until, rowid LIMIT 1";
    const TAKE: &str = "UPDATE outbox SET claimed_until = unixepoch() + ?, first_sent = coalesce(first_sent, unixepoch())
        WHERE key = ? AND claimed_until = ?";
    loop {
        // A read first, because an idle relay must not take the writer lock from the shop.
        let due = sqlx::query_as(DUE).bind(RETRIED.as_secs().cast_signed());
        let due: Option<(String, String, i64)> = due.fetch_optional(pool).await?;
        let Some((key, text, claimed_until)) = due else {
            return Ok(None);
        };
        let claimed = sqlx::query(TAKE)
            .bind(CLAIM.as_secs().cast_signed())
            .bind(&key)
            .bind(claimed_until)
            .execute(pool)
            .await?;
        if claimed.rows_affected() == 1 {
            return Ok(Some(Mail { key, text }));
        }
        // Another relay was faster.
    }
}

async fn deliver(
    client: &Client,
    mails: &str,
    pool: &SqlitePool,
    mail: &Mail,
) -> Result<(), BoxError> {
    let request = client
        .post(mails)
        .header(header::CONTENT_TYPE, "application/json")
        .header("idempotency-key", &mail.key)
        .body(mail.text.clone());
    let answer = request.send().await?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()).into());
    }
    // A crash here: the mail is delivered again with the same key, and the mail service knows it. No claim is asked for: that it
    // was delivered is true, whoever has the claim by now.
    sqlx::query("UPDATE outbox SET delivered = unixepoch() WHERE key = ?")
        .bind(&mail.key)
        .execute(pool)
        .await?;
    Ok(())
}
