//! The statements of the transaction store. None binds a time: the database's clock is in the text, and only durations are bound.

use super::{
    statement::{Argument, Statement},
    upkeep,
};
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
            look: statement(&READ.replace("{more}", &format!("{SETTINGS}, {LIMITS}"))),
            save: statement(&save(IS_OURS)),
            save_unknown: statement(&SAVE_UNKNOWN.replace("{save}", &save(""))),
            forget: statement(FORGET),
            purge: statement(upkeep::PURGE),
            table: table.quoted('"'),
        }
    }

    /// Begins the handler's transaction with the lock of the key, and the savepoint, which costs nothing here. An idle process, one that
    /// is frozen, say, loses it.
    ///
    /// The record is read by [`look`](Self::look), which sees what was committed before the lock was got, and sets the other limits: it
    /// is planned once, and this each time.
    pub(super) fn enter(&self, key: &RecordKey, terms: &Terms) -> String {
        format!("{}; {SAVEPOINT}", self.begin(key, terms, ""))
    }

    /// Begins a transaction of another isolation than READ COMMITTED. It would read as of the moment before the lock, and, if it is
    /// serializable, be in conflict with those that write neighbouring keys: so the record is read under the lock just before, by a
    /// transaction of its own. Rows: one that doesn't count, of [`look`](Self::look), and of [`begin`](Self::begin).
    pub(super) fn look_and_enter(&self, key: &RecordKey, terms: &Terms) -> String {
        let arguments = looking(key, terms);
        let (lock, look) = (self.lock(key, terms), spelled(&self.look, &arguments));
        let limits = LIMITS.replace("$2", &idle_limit(terms).to_string());
        let enter = self.begin(key, terms, &format!(", {limits}"));
        format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {lock}; {look}; COMMIT; {enter}")
    }

    /// Waits for the key's lock, within bounds, and reads the record under it. Rows: one that doesn't count, and of [`read`](Self::read).
    pub(super) fn read_locked(&self, key: &RecordKey) -> String {
        let (lock, read) = (self.lock_number(key), spelled(&self.read, &[key.into()]));
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; SELECT pg_advisory_xact_lock({lock}); {read}; \
             ROLLBACK"
        )
    }

    /// The settings end with the transaction. One row: whether the lock was got, the session's own limit, and more.
    fn begin(&self, key: &RecordKey, terms: &Terms, more: &str) -> String {
        let (lock, limit) = (self.lock(key, terms), idle_limit(terms));
        format!(
            "BEGIN; SELECT {lock}, set_config('tower_idempotency.own_limit', current_setting('{IDLE_LIMIT}'), true){more}; \
             SET LOCAL {IDLE_LIMIT} = {limit}"
        )
    }

    /// Takes the lock if it is free, and then marks the transaction by [`claim`].
    fn lock(&self, key: &RecordKey, terms: &Terms) -> String {
        let (claim, lock) = (claim(terms.nonce()), self.lock_number(key));
        // Not `||`, which has many meanings to choose from.
        format!(
            "set_config('tower_idempotency.claim', \
             CASE WHEN pg_try_advisory_xact_lock({lock}) THEN '{claim}' ELSE '' END, true)"
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

fn save(condition: &str) -> String {
    SAVE.replace("{condition}", condition)
}

fn spelled(statement: &Statement, arguments: &[Argument<'_>]) -> String {
    statement.spelled(arguments).unwrap_or_default()
}

/// The arguments of [`look`](TransactionSql::look).
pub(super) fn looking<'a>(key: &'a RecordKey, terms: &Terms) -> [Argument<'a>; 2] {
    [key.into(), i64::from(idle_limit(terms)).into()]
}

pub(super) fn limit_idleness(milliseconds: i32) -> String {
    format!("SET LOCAL {IDLE_LIMIT} = {milliseconds}")
}

/// What marks a transaction as the one of this nonce, which has its key's lock.
pub(super) fn claim(nonce: Nonce) -> String {
    let mut claim = String::new();
    hex::encode(nonce.as_bytes(), &mut claim);
    claim
}

/// One row: whether the transaction is the one that was opened for this nonce.
pub(super) fn is_ours(nonce: Nonce) -> String {
    let claim = claim(nonce);
    format!("SELECT coalesce(current_setting('tower_idempotency.claim', true) = '{claim}', false)")
}

/// In milliseconds, as the setting has it: 0 would be no limit, and there are 31 bits.
pub(super) fn idle_limit(terms: &Terms) -> i32 {
    let limit = terms.run_limit().as_millis();
    i32::try_from(limit).unwrap_or(i32::MAX).max(1)
}

/// For a process that is cut off while the server is at work, or sending. A server that executes a statement looks now and then whether
/// its client is still there: Postgres has this since 14. Other systems than Linux refuse both settings, or some versions there do.
const LIMITS: &str = "CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) = '0'
    THEN set_config('client_connection_check_interval', '1s', true) END,
    CASE WHEN version() LIKE '%linux%' AND current_setting('tcp_user_timeout') = '0'
    THEN set_config('tcp_user_timeout', ($2::bigint)::text, true) END";

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
RETURNING true";

const SAVE_UNKNOWN: &str =
    "WITH written AS ({save}) SELECT EXISTS (SELECT FROM written), {own} AS is_own";

const IS_OURS: &str =
    " WHERE current_setting('tower_idempotency.claim', true) = encode($4::bytea, 'hex')";

/// One row: whether it was live.
const FORGET: &str = "
WITH deleted AS (DELETE FROM {table} WHERE record_key = $1::bytea RETURNING expires > {now} AS is_live)
SELECT coalesce((SELECT is_live FROM deleted), false), {own} AS is_own";

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
        let enter = sql.enter(&key, &terms);
        assert!(enter.contains(&format!("'{}'", "27".repeat(16))), "{enter}");
        assert!(enter.contains(&format!("= {};", i32::MAX)), "{enter}");
    }
}
