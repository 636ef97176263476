use std::{error::Error, time::Duration};

use tokio_postgres::{Client, Row};
use tower_idempotency::{
    Fingerprint, RecordKey, SavedResponse, StoreError, StoreErrorKind, Tag,
    store::{Claim, Record, RecordState, Reservation},
};

use crate::error::failed;

pub(crate) const SCHEMA: &str = include_str!("schema.sql");

/// One row, with the database's clock, whether there is a record or not.
const READ: &str = "
    SELECT (extract(epoch FROM now) * 1000000)::int8 AS clock,
        extract(epoch FROM expires - now)::float8 AS expires_in, record.*
    FROM clock_timestamp() AS now
    LEFT JOIN idempotency AS record ON record_key = $1 AND expires > now";

/// Replaces what has expired, and nothing else.
const WRITE: &str = "
    INSERT INTO idempotency AS record
        (record_key, fingerprint_tag, fingerprint, nonce, fence, response, expires)
    VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 second')
    ON CONFLICT (record_key) DO UPDATE
    SET (record_key, fingerprint_tag, fingerprint, nonce, fence, response, expires) = ROW(excluded.*)
    WHERE record.expires <= clock_timestamp()";

/// In seconds. Dates have an end.
const CENTURY: f64 = 3.15e9;

pub(crate) const FORGET: &str =
    "DELETE FROM idempotency WHERE record_key = $1 AND expires > clock_timestamp()";

/// Skips what is being replaced, and looks again once it has the rows: they may have been. `now()` can use the index.
pub(crate) const PURGE: &str = "
    DELETE FROM idempotency WHERE expires <= now() AND record_key IN (
        SELECT record_key FROM idempotency WHERE expires <= now()
        ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED
    )";

/// What is under a key.
pub(crate) struct Found {
    /// In microseconds since 1970.
    pub(crate) clock: u64,
    /// The record and the nonce of its claim, unless it has expired.
    pub(crate) stored: Option<(Record, Vec<u8>)>,
}

pub(crate) async fn read(client: &Client, key: &RecordKey) -> Result<Found, StoreError> {
    let row = client.query_one(READ, &[&key.as_bytes().as_slice()]).await;
    let found = Found::decode(&row.map_err(failed)?);
    found.map_err(|unreadable| StoreError::new(StoreErrorKind::Other, unreadable))
}

/// Tells whether there was room: the record of another claim stays.
pub(crate) async fn write(
    client: &Client,
    claim: &Claim,
    response: Option<&SavedResponse>,
    retention: Duration,
) -> Result<bool, tokio_postgres::Error> {
    let fingerprint = claim.fingerprint();
    let written = client
        .execute(
            WRITE,
            &[
                &claim.key().as_bytes().as_slice(),
                &i32::from(fingerprint.tag().to_u16()),
                &fingerprint.digest().as_slice(),
                &claim.nonce().as_bytes().as_slice(),
                &i64::try_from(claim.fence()).unwrap_or(i64::MAX),
                &response.map(SavedResponse::encode).as_deref(),
                &retention.as_secs_f64().min(CENTURY),
            ],
        )
        .await?;
    Ok(written == 1)
}

/// What a request is told that finds this record under its key.
pub(crate) fn answer(record: Record, fingerprint: &Fingerprint) -> Reservation {
    if record.fingerprint != *fingerprint {
        Reservation::Mismatch(record.fingerprint)
    } else if let RecordState::Completed(response) = record.state {
        Reservation::replay(response, record.expires_in)
    } else {
        Reservation::Unknown
    }
}

impl Found {
    fn decode(row: &Row) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let clock = row.try_get::<_, i64>("clock")?.try_into()?;
        let Some(expires_in) = row.try_get("expires_in")? else {
            let stored = None;
            return Ok(Self { clock, stored });
        };
        let tag = Tag::from_u16(row.try_get::<_, i32>("fingerprint_tag")?.try_into()?);
        let digest = row.try_get::<_, &[u8]>("fingerprint")?.try_into()?;
        let state = match row.try_get::<_, Option<Vec<u8>>>("response")? {
            Some(response) => RecordState::Completed(SavedResponse::decode(response)?),
            None => RecordState::Unknown,
        };
        let record = Record::new(
            Fingerprint::new(tag, digest),
            1,
            row.try_get::<_, i64>("fence")?.try_into()?,
            state,
            Duration::try_from_secs_f64(expires_in)?,
        );
        let stored = Some((record, row.try_get("nonce")?));
        Ok(Self { clock, stored })
    }
}
