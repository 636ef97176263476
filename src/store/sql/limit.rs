use std::{io, time::Duration};

use tokio::time::timeout;

/// A database that has not answered by then is given up: its connection is closed.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Gives a server up that doesn't answer.
#[allow(dead_code, reason = "SQLite has no server")]
pub(crate) async fn bounded<T>(
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match timeout(ANSWER_LIMIT, answer).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
    }
}
