//! The statements of the transaction store. None binds a time: the database's clock is in the text, and only durations are bound.

use super::{statement::Statement, upkeep};
use crate::{
    RecordKey,
    store::{
        Nonce, TableName, Terms,
        sql::{hex, transactions::SAVEPOINT},
    },
};

/// The statements, for one table.
#[derive(Debug)]
pub(super) struct TransactionSql {
    pub(super) read: Statement,
    pub(super) look: Statement,
    pub(super) save: Statement,
    pub(super) save_unknown: Statement,
    pub(super) forget: Statement,
    pub(super) purge: Statement,
    /// Quoted.
    table: String,
}

impl TransactionSql {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |template: &str| Statement::new(template, table);
        Self {
            read: statement(&READ.replace("{more}", ", {own} AS is_own")),
            look: statement(&READ.replace("{more}", SETTINGS)),
            save: statement(&save(IS_OURS, "true")),
            save_unknown: statement(&save("", "{own} AS is_own")),
            forget: statement(FORGET),
            purge: statement(upkeep::PURGE),
            table: table.quoted('"'),
        }
    }

    /// Begins the handler's transaction with the lock of the key, and with limits: a process that is frozen, or cut off, loses it, be
    /// the server idle, at work, or sending. The settings end with the transaction. One row: [`claim`], and the session's own limit.
    ///
    /// The record is read by a statement of its own, which sees what was committed before the lock was got.
    pub(super) fn enter(&self, key: &RecordKey, terms: &Terms) -> String {
        let (lock, limit) = (self.lock(key, terms), idle_limit(terms));
        format!(
            "BEGIN; SELECT {lock}, set_config('tower_idempotency.own_limit', current_setting('{IDLE_LIMIT}'), true), \
             {NOTICE_CLOSED}, CASE current_setting('tcp_user_timeout') WHEN '0' THEN \
             set_config('tcp_user_timeout', '{limit}', true) END; SET LOCAL {IDLE_LIMIT} = {limit}"
        )
    }

    /// The same with the savepoint, which costs nothing here.
    pub(super) fn enter_with_savepoint(&self, key: &RecordKey, terms: &Terms) -> String {
        format!("{}; {SAVEPOINT}", self.enter(key, terms))
    }

    /// Begins a transaction of another isolation than READ COMMITTED. It would read as of the moment before the lock, and, if it is
    /// serializable, be in conflict with those that write neighbouring keys: so the record is read under the lock just before, by a
    /// transaction of its own. Rows: one that doesn't count, of [`look`](Self::look), and of [`enter`](Self::enter).
    pub(super) fn look_and_enter(&self, key: &RecordKey, terms: &Terms) -> String {
        let (lock, look) = (self.lock(key, terms), spelled(&self.look, key));
        let enter = self.enter(key, terms);
        format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {lock}; {look}; COMMIT; {enter}")
    }

    /// Waits for the key's lock, within bounds, and reads the record under it. Rows: one that doesn't count, and of [`read`](Self::read).
    pub(super) fn read_locked(&self, key: &RecordKey) -> String {
        let (lock, read) = (self.lock_number(key), spelled(&self.read, key));
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; SELECT pg_advisory_xact_lock({lock}); {read}; \
             ROLLBACK"
        )
    }

    /// Takes the lock if it is free, and marks the transaction.
    fn lock(&self, key: &RecordKey, terms: &Terms) -> String {
        let (claim, lock) = (claim(terms.nonce(), ""), self.lock_number(key));
        format!(
            "set_config('tower_idempotency.claim', '{claim}' || pg_try_advisory_xact_lock({lock}), true)"
        )
    }

    /// The same key in another table is another one. Keys are random: that two of them share a lock is next to impossible, and would
    /// do no harm.
    fn lock_number(&self, key: &RecordKey) -> String {
        let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
        let number = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
        format!("({number}) # '{}'::regclass::oid::bigint", self.table)
    }
}

fn save(condition: &str, returned: &str) -> String {
    SAVE.replace("{condition}", condition)
        .replace("{returned}", returned)
}

fn spelled(statement: &Statement, key: &RecordKey) -> String {
    statement.spelled(&[key.into()]).unwrap_or_default()
}

pub(super) fn limit_idleness(milliseconds: i32) -> String {
    format!("SET LOCAL {IDLE_LIMIT} = {milliseconds}")
}

/// What marks a transaction as the one of this nonce, and tells whether it got the lock: `true` or `false`.
pub(super) fn claim(nonce: Nonce, locked: &str) -> String {
    let mut claim = String::new();
    hex::encode(nonce.as_bytes(), &mut claim);
    claim.push(' ');
    claim.push_str(locked);
    claim
}

/// One row: whether the transaction is the one that was opened for this nonce.
pub(super) fn is_ours(nonce: Nonce) -> String {
    let claim = claim(nonce, "true");
    format!("SELECT coalesce(current_setting('tower_idempotency.claim', true) = '{claim}', false)")
}

/// In milliseconds, as the setting has it: 0 would be no limit, and there are 31 bits.
pub(super) fn idle_limit(terms: &Terms) -> i32 {
    let limit = terms.run_limit().as_millis();
    i32::try_from(limit).unwrap_or(i32::MAX).max(1)
}

/// A server that executes a statement looks now and then whether its client is still there. Postgres has this since 14, and not on
/// Windows.
const NOTICE_CLOSED: &str =
    "CASE WHEN current_setting('client_connection_check_interval', true) = '0'
    AND current_setting('dynamic_shared_memory_type') <> 'windows'
    THEN set_config('client_connection_check_interval', '1s', true) END";

const IDLE_LIMIT: &str = "idle_in_transaction_session_timeout";

/// Ends a transaction that sqlx doesn't count.
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// One row, always: the clock, the record or NULLs, and what the transaction is like.
const READ: &str = "
SELECT now, fingerprint_tag, fingerprint, nonce, fence, expires, response{more}
FROM (SELECT {now} AS now) AS clock LEFT JOIN {table} ON record_key = $1::bytea";

const SETTINGS: &str =
    ", current_setting('tower_idempotency.claim'), current_setting('transaction_isolation'),
    current_setting('transaction_read_only'), current_setting('tower_idempotency.own_limit', true)";

/// The record, kept for $6: a new row, or over an expired one. No row = another's is there, or the transaction isn't ours.
const SAVE: &str = "
INSERT INTO {table} AS record (record_key, fingerprint_tag, fingerprint, nonce, fence, expires, response)
SELECT $1::bytea, $2::bigint, $3::bytea, $4::bytea, $5::bigint, {now} + $6::bigint, $7::bytea{condition}
ON CONFLICT (record_key) DO UPDATE SET
    fingerprint_tag = excluded.fingerprint_tag, fingerprint = excluded.fingerprint, nonce = excluded.nonce,
    fence = greatest(record.fence, excluded.fence), expires = excluded.expires, response = excluded.response
WHERE record.expires <= {now}
RETURNING {returned}";

const IS_OURS: &str =
    " WHERE current_setting('tower_idempotency.claim', true) = encode($4::bytea, 'hex') || ' true'";

const FORGET: &str =
    "DELETE FROM {table} WHERE record_key = $1::bytea RETURNING expires > {now}, {own} AS is_own";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_statement_binds_a_time() {
        let sql = TransactionSql::new(&TableName::of("transactions"));
        for statement in [
            sql.read,
            sql.look,
            sql.save,
            sql.save_unknown,
            sql.forget,
            sql.purge,
        ] {
            let text = statement.as_str();
            assert!(
                text.contains("clock_timestamp()"),
                "the clock is the database's: {text}"
            );
            for operator in ["=", "<", ">", "<=", ">="] {
                assert!(!text.contains(&format!("expires {operator} $")), "{text}");
            }
        }
    }

    #[test]
    fn what_is_put_into_a_text_is_numbers_and_digits() {
        let key = RecordKey::from_bytes([0xf7; 32]);
        let nonce = Nonce::from_bytes([0x27; 16]);
        let terms =
            Terms::new(nonce, Duration::from_secs(1), Duration::MAX).with_run_limit(Duration::MAX);
        let sql = TransactionSql::new(&TableName::of("transactions"));
        for text in [sql.look_and_enter(&key, &terms), sql.read_locked(&key)] {
            assert!(
                text.contains(&format!("decode('{}', 'hex')", "f7".repeat(32))),
                "{text}"
            );
            assert!(
                text.contains(
                    "advisory_xact_lock((-578721382704613385) # '\"transactions\"'::regclass"
                ),
                "{text}"
            );
            assert!(!text.contains('$'), "{text}");
        }
        let enter = sql.enter_with_savepoint(&key, &terms);
        assert!(
            enter.contains(&format!("'{} '", "27".repeat(16))),
            "{enter}"
        );
        assert!(enter.contains(&format!("= {};", i32::MAX)), "{enter}");
    }
}
