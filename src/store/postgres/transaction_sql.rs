//! The statements of the transaction store. None binds a time: the database's clock is in the text, and only durations are bound.

use std::time::Duration;

use super::{
    hex,
    statement::{Argument, Statement},
    upkeep,
};
use crate::{
    RecordKey,
    store::{Nonce, TableName, Terms},
};

/// The statements, for one table.
#[derive(Debug)]
pub(super) struct TransactionSql {
    pub(super) read: Statement,
    /// Reads the record, and how the transaction stands. A statement of its own: under READ COMMITTED it sees what was committed
    /// before the lock was got.
    pub(super) look: Statement,
    standing: Statement,
    pub(super) save: Statement,
    pub(super) save_unknown: Statement,
    pub(super) forget: Statement,
    pub(super) purge: Statement,
}

impl TransactionSql {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |template: &str| Statement::new(template, table);
        Self {
            read: statement(&READ.replace("{more}", "")),
            look: statement(&READ.replace("{more}", &format!(", {STANDING}"))),
            standing: statement(&format!("SELECT {STANDING}")),
            save: statement(&SAVE.replace("{condition}", IS_OURS)),
            save_unknown: statement(&SAVE.replace("{condition}", "")),
            forget: statement(FORGET),
            purge: statement(upkeep::PURGE),
        }
    }

    /// Begins the handler's transaction where its isolation isn't READ COMMITTED: it would read as of the moment before the lock, and a
    /// serializable one would be in conflict with those that write neighbouring keys. So the record is read by a transaction of its
    /// own under the lock, just before. Rows: the lock, [`READ`], one of no meaning, [`STANDING`].
    pub(super) fn begin_isolated(&self, key: &RecordKey, terms: &Terms) -> String {
        let (lock, begin, read) = (lock_number(key), begin(key, terms), self.spelled_read(key));
        let nonce = terms.nonce();
        let standing = self.standing.spelled(&look_arguments(key, &nonce, terms));
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_try_advisory_xact_lock({lock}); {read}; COMMIT; {begin}; {}",
            standing.unwrap_or_default()
        )
    }

    /// Waits for the key's lock, within bounds, and reads the record under it. Rows: one of no meaning, [`READ`].
    pub(super) fn read_locked(&self, key: &RecordKey) -> String {
        let (lock, read) = (lock_number(key), self.spelled_read(key));
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; SELECT pg_advisory_xact_lock({lock}); {read}; \
             ROLLBACK"
        )
    }

    fn spelled_read(&self, key: &RecordKey) -> String {
        self.read.spelled(&[key.into()]).unwrap_or_default()
    }
}

/// Begins a transaction, takes the key's lock if it is free, and marks the transaction by the nonce if it has it. The mark is a local
/// setting, which ends with the transaction.
pub(super) fn begin(key: &RecordKey, terms: &Terms) -> String {
    let (lock, nonce) = (lock_number(key), hex_nonce(terms.nonce()));
    format!(
        "BEGIN; SELECT set_config('tower_idempotency.nonce', CASE WHEN pg_try_advisory_xact_lock({lock}) THEN '{nonce}' ELSE '' END, true)"
    )
}

/// What [`TransactionSql::look`] is called with.
pub(super) fn look_arguments<'a>(
    key: &'a RecordKey,
    nonce: &'a Nonce,
    terms: &Terms,
) -> [Argument<'a>; 3] {
    let limit = to_millis(terms.run_limit()).into();
    [
        key.into(),
        Argument::nonce(nonce),
        Argument::Number(Some(limit)),
    ]
}

/// One row: whether the transaction is the one that was opened for this nonce.
pub(super) fn is_ours(nonce: Nonce) -> String {
    let nonce = hex_nonce(nonce);
    format!("SELECT coalesce(current_setting('tower_idempotency.nonce', true) = '{nonce}', false)")
}

/// Records have random keys, so that two of them sharing a lock is as good as impossible, and would do no harm.
fn lock_number(key: &RecordKey) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn hex_nonce(nonce: Nonce) -> String {
    let mut text = String::new();
    hex::encode(nonce.as_bytes(), &mut text);
    text
}

/// As settings have it: 0 would be no limit, and there are 31 bits.
fn to_millis(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// One row, always: the clock, and the record or NULLs. The columns of [`Columns`](super::super::sql::Columns).
const READ: &str = "
SELECT now, fingerprint_tag::bigint, fingerprint, nonce, 1::bigint, fence,
    CASE WHEN response IS NULL THEN 2 ELSE 1 END::bigint, expires, expires, response{more}
FROM (SELECT {now} AS now) AS clock LEFT JOIN {table} ON record_key = $1::bytea";

/// Whether the transaction has the lock (it is marked by the nonce $2), whether it is READ COMMITTED, whether it only reads.
///
/// And a limit of $3 milliseconds, for this transaction only, unless the session's own is shorter: so that a process that is frozen
/// or cut off doesn't hold the key for ever.
const STANDING: &str = "coalesce(current_setting('tower_idempotency.nonce', true) = encode($2::bytea, 'hex'), false),
    current_setting('transaction_isolation') = 'read committed', current_setting('transaction_read_only') = 'on',
    set_config('idle_in_transaction_session_timeout', least($3::bigint, nullif((extract(
        epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0))::text, true)";

/// The record, kept for $6: a new row, or over an expired one. No row = another's is there, or the transaction isn't ours.
const SAVE: &str = "
INSERT INTO {table} AS record (record_key, fingerprint_tag, fingerprint, nonce, fence, expires, response)
SELECT $1::bytea, $2::bigint, $3::bytea, $4::bytea, $5::bigint, {now} + $6::bigint, $7::bytea{condition}
ON CONFLICT (record_key) DO UPDATE SET
    fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
    fence = greatest(record.fence, excluded.fence), expires = excluded.expires, response = excluded.response
WHERE record.expires <= {now}
RETURNING true";

const IS_OURS: &str =
    " WHERE current_setting('tower_idempotency.nonce', true) = encode($4::bytea, 'hex')";

const FORGET: &str = "DELETE FROM {table} WHERE record_key = $1::bytea RETURNING expires > {now}";
