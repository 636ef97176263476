//! The statements of the lease store. None binds a time: SQLite's clock is in the text, and only durations are bound.
//!
//! A record is over, for whatever reason, when `lease_end` has come: completed ones have it equal to `expires`. What is to be over
//! whatever becomes of the clock, which may be set back, doesn't depend on it: abandoned claims, and rows that were freed.

use super::clock::now;

/// One row, always: the clock, and the record or NULLs. The columns of [`Columns`](super::super::sql::Columns).
pub(super) const READ: &str = concat!(
    "SELECT clock.now, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires, response
     FROM (SELECT ", now!(), " AS now) AS clock LEFT JOIN tower_idempotency_leases ON record_key = ?1"
);

/// The claim: a new row, or over the row of nonce ?6 and state ?7, if it is over by now. No row back = read again.
pub(super) const CLAIM: &str = concat!(
    "INSERT INTO tower_idempotency_leases AS record
         (record_key, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires)
     VALUES (?1, ?2, ?3, ?4, ?5, ", now!(), ", 0, ", now!(), " + ?8, ", now!(), " + ?8 + ?9)
     ON CONFLICT (record_key) DO UPDATE SET
         fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
         attempt = excluded.attempt, fence = max(record.fence + 1, excluded.fence), state = 0,
         lease_end = excluded.lease_end, expires = excluded.expires, response = NULL,
         steps = CASE WHEN excluded.attempt > 1 THEN record.steps END
     WHERE record.nonce = ?6 AND record.state = ?7 AND (record.state = 2 OR record.lease_end <= ", now!(), ")
     RETURNING fence"
);

/// Of a running claim only; what is kept after the lease stays as long as it was.
pub(super) const RENEW: &str = concat!(
    "UPDATE tower_idempotency_leases
     SET lease_end = ",
    now!(),
    " + ?3, expires = ",
    now!(),
    " + ?3 + (expires - lease_end)
     WHERE record_key = ?1 AND nonce = ?2 AND state = 0 AND expires > ",
    now!()
);

/// Settles as state ?7 with response ?9, kept for ?8: over the claim's own running record, over an expired one, or as a new one.
/// `lease_end` is `expires` for a completed record (?10 = 1), and the present for an abandoned one (?10 = 0).
pub(super) const SETTLE: &str = concat!(
    "INSERT INTO tower_idempotency_leases AS record
         (record_key, fingerprint_tag, fingerprint, nonce, attempt, fence, state, lease_end, expires, response)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ", now!(), " + ?8 * ?10, ", now!(), " + ?8, ?9)
     ON CONFLICT (record_key) DO UPDATE SET
         fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
         attempt = excluded.attempt, fence = max(record.fence, excluded.fence), state = excluded.state,
         lease_end = excluded.lease_end, expires = excluded.expires, response = excluded.response,
         steps = CASE WHEN record.nonce = excluded.nonce AND excluded.state = 2 THEN record.steps END
     WHERE (record.nonce = excluded.nonce AND record.state = 0) OR record.expires <= ", now!()
);

/// Appends to the notes, which are digits: what `||` makes of blobs is a text, and loses bytes where a database is in UTF-16.
pub(super) const NOTE: &str = concat!(
    "UPDATE tower_idempotency_leases SET steps = coalesce(steps, '') || hex(?3)
     WHERE record_key = ?1 AND nonce = ?2 AND state <> 1 AND expires > ",
    now!()
);

pub(super) const NOTES: &str = concat!(
    "SELECT steps FROM tower_idempotency_leases
     WHERE record_key = ?1 AND nonce = ?2 AND state <> 1 AND expires > ",
    now!()
);

/// The row stays, expired, until it is purged: the next claim's fence goes on from it.
pub(super) const RELEASE: &str = concat!(
    "UPDATE tower_idempotency_leases SET steps = NULL, lease_end = 0, expires = 0
     WHERE record_key = ?1 AND nonce = ?2 AND state = 0 AND expires > ",
    now!()
);

/// Likewise; what was saved is erased at once.
pub(super) const FORGET: &str = concat!(
    "UPDATE tower_idempotency_leases SET state = 2, response = NULL, steps = NULL, lease_end = 0, expires = 0
     WHERE record_key = ?1 AND expires > ",
    now!()
);

/// A fence that the clock hasn't passed yet, in this very millisecond, say, stays: the key's next one goes on from it.
pub(super) const PURGE: &str = concat!(
    "DELETE FROM tower_idempotency_leases WHERE rowid IN
         (SELECT rowid FROM tower_idempotency_leases WHERE expires < ",
    now!(),
    " AND fence < ",
    now!(),
    " ORDER BY expires LIMIT ?1)"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_binds_a_time() {
        for sql in [
            READ, CLAIM, RENEW, SETTLE, NOTE, NOTES, RELEASE, FORGET, PURGE,
        ] {
            assert!(sql.contains(now!()), "the clock is SQLite's: {sql}");
            for column in ["lease_end", "expires"] {
                for operator in ["=", "<", ">", "<=", ">="] {
                    assert!(!sql.contains(&format!("{column} {operator} ?")), "{sql}");
                }
            }
        }
    }
}
