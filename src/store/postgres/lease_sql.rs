//! The statements of the lease store. None binds a time: the database's clock is in the text, and only durations are bound.
//!
//! Each tells by the column `is_own` whether it is committed: see [`Database::run`](super::database::Database::run). What writes or
//! locks nothing at all may give no row, and what only reads gives one also where there is no record.
//!
//! A record is over, for whatever reason, when `lease_end` has come: completed ones have it equal to `expires`. What is to be over
//! whatever becomes of the clock, which may be set back, doesn't depend on it: abandoned claims, and rows that were freed.

use super::{statement::Statement, upkeep};
use crate::store::TableName;

/// The statements, for one table.
#[derive(Debug)]
pub(super) struct LeaseSql {
    pub(super) claim_or_read: Statement,
    pub(super) read: Statement,
    pub(super) claim_over: Statement,
    pub(super) renew: Statement,
    pub(super) settle: Statement,
    pub(super) note: Statement,
    pub(super) notes: Statement,
    pub(super) release: Statement,
    pub(super) forget: Statement,
    pub(super) purge: Statement,
}

impl LeaseSql {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |template| Statement::new(template, table);
        Self {
            claim_or_read: statement(CLAIM_OR_READ),
            read: statement(READ),
            claim_over: statement(CLAIM_OVER),
            renew: statement(RENEW),
            settle: statement(SETTLE),
            note: statement(NOTE),
            notes: statement(NOTES),
            release: statement(RELEASE),
            forget: statement(FORGET),
            purge: statement(upkeep::PURGE),
        }
    }
}

/// A new claim, as a row of NULLs but for its fence; or the row that is there, which is then neither written nor locked, as it would be
/// by `DO UPDATE`, whatever that updates. No row = one came in between, which this statement's snapshot doesn't show.
const CLAIM_OR_READ: &str = "
WITH clock AS (SELECT {now} AS now, {own} AS is_own),
     found AS (SELECT * FROM {table} WHERE record_key = $1::bytea),
     claimed AS (
         INSERT INTO {table} (record_key, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires)
         SELECT $1::bytea, $2::bigint, $3::bytea, $4::bytea, 1, now, 0, now + $5::bigint, now + $5::bigint + $6::bigint
         FROM clock WHERE NOT EXISTS (SELECT FROM found)
         ON CONFLICT (record_key) DO NOTHING
         RETURNING fence
     )
SELECT now, fingerprint_tag::bigint, fingerprint, nonce, attempt::bigint, fence, state::bigint, lease_end, expires, response, is_own
FROM clock, found
UNION ALL
SELECT fence, NULL, NULL, NULL, NULL, fence, NULL, NULL, NULL, NULL, is_own FROM clock, claimed";

/// One row, always: the clock, and the record or NULLs. The columns of [`Columns`](super::super::sql::Columns).
const READ: &str = "
SELECT now, fingerprint_tag::bigint, fingerprint, nonce, attempt::bigint, fence, state::bigint, lease_end, expires, response,
    {own} AS is_own
FROM (SELECT {now} AS now) AS clock LEFT JOIN {table} ON record_key = $1::bytea";

/// The claim: a new row, or over the row of nonce $6 and state $7, if it is over by now. No fence = read again.
const CLAIM_OVER: &str = "
WITH claimed AS (
    INSERT INTO {table} AS record
        (record_key, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires)
    SELECT $1::bytea, $2::bigint, $3::bytea, $4::bytea, $5::bigint, now, 0, now + $8::bigint, now + $8::bigint + $9::bigint
    FROM (SELECT {now} AS now) AS clock
    ON CONFLICT (record_key) DO UPDATE SET
        fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
        attempt = excluded.attempt, fence = greatest(record.fence + 1, excluded.fence), state = 0,
        lease_end = excluded.lease_end, expires = excluded.expires, response = NULL,
        steps = CASE WHEN excluded.attempt > 1 THEN record.steps END
    WHERE record.nonce = $6::bytea AND record.state = $7::bigint AND (record.state = 2 OR record.lease_end <= {now})
    RETURNING fence
)
SELECT (SELECT fence FROM claimed), {own} AS is_own";

/// Of a running claim only; what is kept after the lease stays as long as it was.
const RENEW: &str = "
WITH written AS (
    UPDATE {table} SET lease_end = now + $3::bigint, expires = now + $3::bigint + (expires - lease_end)
    FROM (SELECT {now} AS now) AS clock
    WHERE record_key = $1::bytea AND nonce = $2::bytea AND state = 0 AND expires > {now}
    RETURNING true
)
SELECT EXISTS (SELECT FROM written), {own} AS is_own";

/// Settles as state $7 with response $9, kept for $8: over the claim's own running record, over an expired one, or as a new one.
/// `lease_end` is `expires` for a completed record ($10 = 1), and the present for an abandoned one ($10 = 0).
const SETTLE: &str = "
WITH written AS (
    INSERT INTO {table} AS record
        (record_key, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires, response)
    SELECT $1::bytea, $2::bigint, $3::bytea, $4::bytea, $5::bigint, $6::bigint, $7::bigint,
        now + $8::bigint * $10::bigint, now + $8::bigint, $9::bytea
    FROM (SELECT {now} AS now) AS clock
    ON CONFLICT (record_key) DO UPDATE SET
        fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
        attempt = excluded.attempt, fence = greatest(record.fence, excluded.fence), state = excluded.state,
        lease_end = excluded.lease_end, expires = excluded.expires, response = excluded.response,
        steps = CASE WHEN record.nonce = excluded.nonce AND excluded.state = 2 THEN record.steps END
    WHERE (record.nonce = excluded.nonce AND record.state = 0) OR record.expires <= {now}
    RETURNING true
)
SELECT EXISTS (SELECT FROM written), {own} AS is_own";

/// Appends to the notes.
const NOTE: &str = "
WITH written AS (
    UPDATE {table} SET steps = coalesce(steps, ''::bytea) || $3::bytea
    WHERE record_key = $1::bytea AND nonce = $2::bytea AND state <> 1 AND expires > {now}
    RETURNING true
)
SELECT EXISTS (SELECT FROM written), {own} AS is_own";

/// One row, always: whether the claim's is there, and what it has.
const NOTES: &str = "
SELECT record_key IS NOT NULL, steps, {own} AS is_own
FROM (SELECT) AS one LEFT JOIN {table}
    ON record_key = $1::bytea AND nonce = $2::bytea AND state <> 1 AND expires > {now}";

/// The row stays, expired, until it is purged: the next claim's fence goes on from it.
const RELEASE: &str = "
WITH written AS (
    UPDATE {table} SET steps = NULL, lease_end = 0, expires = 0
    WHERE record_key = $1::bytea AND nonce = $2::bytea AND state = 0 AND expires > {now}
    RETURNING true
)
SELECT EXISTS (SELECT FROM written), {own} AS is_own";

/// Likewise; what was saved is erased at once.
const FORGET: &str = "
WITH written AS (
    UPDATE {table} SET state = 2, response = NULL, steps = NULL, lease_end = 0, expires = 0
    WHERE record_key = $1::bytea AND expires > {now}
    RETURNING true
)
SELECT EXISTS (SELECT FROM written), {own} AS is_own";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_binds_a_time() {
        let sql = LeaseSql::new(&TableName::of("leases"));
        for statement in [
            sql.claim_or_read,
            sql.read,
            sql.claim_over,
            sql.renew,
            sql.settle,
            sql.note,
            sql.notes,
            sql.release,
            sql.forget,
            sql.purge,
        ] {
            let text = statement.as_str();
            assert!(
                text.contains("clock_timestamp()"),
                "the clock is the database's: {text}"
            );
            for column in ["lease_end", "expires"] {
                for operator in ["=", "<", ">", "<=", ">="] {
                    assert!(!text.contains(&format!("{column} {operator} $")), "{text}");
                }
            }
        }
    }
}
