use std::time::Duration;

use sqlx::{Sqlite, SqliteConnection};
use tokio::time::{Instant, sleep};

use super::error::{is_busy, is_constraint};
use crate::store::sql::{commit, transactions::NotCommitted};

/// A COMMIT that meets a reader (without WAL) is refused as busy and leaves the transaction open: it is sent again.
pub(super) async fn commit_patiently(
    connection: &mut SqliteConnection,
) -> Result<(), NotCommitted> {
    let deadline = Instant::now() + BUSY_LIMIT;
    loop {
        match commit::<Sqlite>(connection).await {
            Ok(()) => return Ok(()),
            Err(error) if is_busy(&error) && Instant::now() < deadline => sleep(BUSY_PAUSE).await,
            Err(error) if is_busy(&error) || is_constraint(&error) => {
                return Err(NotCommitted::Refused(error));
            }
            Err(error) => return Err(NotCommitted::Unsure(error)),
        }
    }
}

/// As long as sqlx's default busy timeout, which each attempt may wait by itself.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(5);
