//! The statements of the transaction store. None binds a time: SQLite's clock is in the text, and only durations are bound.

use super::clock::now;

/// One at a time may write: waiting here, up to the busy timeout, means that nothing later meets a lock.
/// A deferred transaction that reads and then writes fails at once when another has committed in between.
///
/// With the [`SAVEPOINT`](super::super::sql::transactions::SAVEPOINT), which costs nothing here.
pub(super) const BEGIN: &str = "BEGIN IMMEDIATE; SAVEPOINT tower_idempotency";

/// One row, always: the clock, and the record or NULLs. The columns of [`Columns`](super::super::sql::Columns).
pub(super) const READ: &str = concat!(
    "SELECT clock.now, fingerprint_tag, fingerprint, nonce, 1, fence, CASE WHEN response IS NULL THEN 2 ELSE 1 END,
         expires, expires, response
     FROM (SELECT ", now!(), " AS now) AS clock LEFT JOIN tower_idempotency_transactions ON record_key = ?1"
);

/// The record, kept for ?6: a new row, or over an expired one. No row = another's is there.
pub(super) const SAVE: &str = concat!(
    "INSERT INTO tower_idempotency_transactions AS record
         (record_key, fingerprint_tag, fingerprint, nonce, fence, expires, response)
     VALUES (?1, ?2, ?3, ?4, ?5, ", now!(), " + ?6, ?7)
     ON CONFLICT (record_key) DO UPDATE SET
         fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
         fence = max(record.fence, excluded.fence), expires = excluded.expires, response = excluded.response
     WHERE record.expires <= ", now!()
);

pub(super) const FORGET: &str = concat!(
    "DELETE FROM tower_idempotency_transactions WHERE record_key = ?1 RETURNING expires > ",
    now!()
);

pub(super) const ANY_EXPIRED: &str = concat!(
    "SELECT EXISTS (SELECT 1 FROM tower_idempotency_transactions WHERE expires <= ",
    now!(),
    ")"
);

pub(super) const PURGE: &str = concat!(
    "DELETE FROM tower_idempotency_transactions WHERE rowid IN
         (SELECT rowid FROM tower_idempotency_transactions WHERE expires <= ",
    now!(),
    " ORDER BY expires LIMIT ?1)"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::transactions::SAVEPOINT;

    #[test]
    fn a_transaction_begins_with_the_savepoint() {
        assert!(BEGIN.ends_with(SAVEPOINT));
    }

    #[test]
    fn no_statement_binds_a_time() {
        for sql in [READ, SAVE, FORGET, ANY_EXPIRED, PURGE] {
            assert!(sql.contains(now!()), "the clock is SQLite's: {sql}");
            for operator in ["=", "<", ">", "<=", ">="] {
                assert!(!sql.contains(&format!("expires {operator} ?")), "{sql}");
            }
        }
    }
}
