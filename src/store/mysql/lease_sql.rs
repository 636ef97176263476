//! The statements of the lease store. None binds a time: the server's clock is in the text, and only durations are bound.
//!
//! A record is over, for whatever reason, when `lease_end` has come: completed ones have it equal to `expires`. What is to be over
//! whatever becomes of the clock, which may be set back, doesn't depend on it: abandoned claims, and rows that were freed. An assignment of
//! an UPDATE sees what those to its left have written, unless a sql_mode of MariaDB says otherwise: none here depends on it.
//!
//! What holds a response or notes is prepared, and tells whether it is committed: see [`Database::write`](super::database::Database::write).
//! The others go as texts between two `COMMIT`s.

use super::statement::{Statement, filled};
use crate::store::TableName;

/// A new row, or the one that is there, which isn't written. MySQL has no RETURNING, and gives no row.
const CLAIM: &str = "
INSERT INTO {table} (record_key, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires)
VALUES (?, ?, ?, ?, 1, {now}, 0, {now} + ?, {now} + ?)
ON DUPLICATE KEY UPDATE record_key = record_key
/*M! RETURNING {now}, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires, response */";

/// One row, always: the clock, and the record or NULLs. The columns of [`Columns`](super::super::sql::Columns).
const READ: &str = "
SELECT micros, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires, response
FROM (SELECT {now} AS micros) AS clock LEFT JOIN {table} ON record_key = ?";

/// The claim over the row of this nonce and state, if it is over by now, and a row with the fence of it.
const CLAIM_OVER: &str = "
UPDATE {table} SET steps = IF(? > 1, steps, NULL), fingerprint_tag = ?, fingerprint = ?, nonce = ?, attempt = ?,
    fence = LAST_INSERT_ID(GREATEST(fence + 1, {now})), state = 0, lease_end = {now} + ?, expires = {now} + ?, response = NULL
WHERE record_key = ? AND nonce = ? AND state = ? AND (state = 2 OR lease_end <= {now});
SELECT LAST_INSERT_ID() FROM DUAL WHERE ROW_COUNT() > 0";

/// Of a running claim only; what is kept after the lease stays as long as it was.
const RENEW: &str = "
UPDATE {table} SET expires = {now} + ? + (expires - lease_end), lease_end = {now} + ?
WHERE record_key = ? AND nonce = ? AND state = 0 AND expires - {now} > 0";

/// Over the claim's own running record, or over an expired one. The notes come first, which look at the nonce that was there.
const SETTLE: &str = "
UPDATE {table} SET steps = IF(? AND nonce = ?, steps, NULL), fingerprint_tag = ?, fingerprint = ?, nonce = ?, attempt = ?, fence = GREATEST(fence, ?), state = ?,
    lease_end = {now} + ?, expires = {now} + ?, response = ?
WHERE {told} = 0 AND record_key = ? AND ((nonce = ? AND state = 0) OR expires - {now} <= 0)";

/// Where no row is.
const SETTLE_LOST: &str = "
INSERT INTO {table} (fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires, response, record_key)
VALUES (?, ?, ?, ?, {told} + ?, ?, {now} + ?, {now} + ?, ?, ?)";

/// Appends to the notes. Both are bytes, so that no character set is of account. What `CONCAT` gives beyond the limit is NULL, and an
/// error in a strict mode only: a sum that no number can hold is one in every mode, and leaves the notes as they are.
const NOTE: &str = "
UPDATE {table} SET steps = CONCAT(COALESCE(steps, x''), ?)
WHERE {told} = 0 AND record_key = ? AND nonce = ? AND state <> 1 AND expires - {now} > 0
    AND 18446744073709551615 + (LENGTH(COALESCE(steps, x'')) + ? > @@max_allowed_packet) > 0";

const NOTES: &str = "
SELECT steps FROM {table} WHERE record_key = ? AND nonce = ? AND state <> 1 AND expires - {now} > 0";

/// The row stays, expired, until it is purged: the next claim's fence goes on from it.
const RELEASE: &str = "
UPDATE {table} SET steps = NULL, lease_end = 0, expires = 0
WHERE record_key = ? AND nonce = ? AND state = 0 AND expires - {now} > 0";

/// Likewise; what was saved is erased at once.
const FORGET: &str = "
UPDATE {table} SET state = 2, response = NULL, steps = NULL, lease_end = 0, expires = 0
WHERE record_key = ? AND expires - {now} > 0";

/// The statements with a table's name in them.
#[derive(Debug)]
pub(super) struct LeaseSql {
    pub(super) claim: Statement,
    pub(super) read: Statement,
    pub(super) claim_over: Statement,
    pub(super) renew: Statement,
    pub(super) settle: Statement,
    pub(super) settle_lost: Statement,
    pub(super) note: Statement,
    pub(super) notes: Statement,
    pub(super) release: Statement,
    pub(super) forget: Statement,
}

impl LeaseSql {
    pub(super) fn new(table: &TableName) -> Self {
        Self::built(|template| filled(template, table))
    }

    /// Of texts that are made of templates like this.
    pub(super) fn built(fill: impl Fn(&str) -> String) -> Self {
        let statement = |template| Statement::new(fill(template));
        Self {
            claim: statement(CLAIM),
            read: statement(READ),
            claim_over: statement(CLAIM_OVER),
            renew: statement(RENEW),
            settle: statement(SETTLE),
            settle_lost: statement(SETTLE_LOST),
            note: statement(NOTE),
            notes: statement(NOTES),
            release: statement(RELEASE),
            forget: statement(FORGET),
        }
    }
}
