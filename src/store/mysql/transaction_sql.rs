//! The statements of the transaction store. No time comes from this process: the server's clock is in the text.
//!
//! Those without arguments to bind are sent in one message. What only MariaDB knows stands in `/*M! */`, and what only MySQL needs in
//! `/*!80000 */`.

use std::time::Duration;

use crate::{
    Fingerprint, RecordKey,
    store::{
        Claim, TableName, Terms,
        mysql::statement::{NOW, Statement, filled, literal},
        sql::{
            to_micros,
            transactions::{RELEASE_SAVEPOINT, ROLLBACK_TO_SAVEPOINT, SAVEPOINT},
        },
    },
};

/// Without autocommit, what a handler writes after its transaction has ended, by a deadlock, say, isn't committed by itself.
/// A frozen process doesn't hold its key for ever: the server ends connections that are idle for so many seconds.
///
/// MySQL can't bound the lock wait of one statement.
const ENTER: &str = "SET @tower_idempotency_autocommit = @@SESSION.autocommit,
    @tower_idempotency_wait_timeout = @@SESSION.wait_timeout,
    /*!80000 @tower_idempotency_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1, */
    SESSION autocommit = 0, SESSION wait_timeout = LEAST(@@SESSION.wait_timeout,";

/// Another's row that isn't committed is not waited for. It stays without a response until the transaction is completed: so it reads
/// as unknown if the handler commits by itself. The clock is told as the id of what was inserted last.
const INSERT: &str = "START TRANSACTION;
/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
INSERT INTO {table} (record_key, fingerprint_tag, fingerprint, nonce, fence, expires) VALUES";

/// From here on sqlx counts the transaction, which the handler's nested ones need.
const BEGIN: &str = "SET @tower_idempotency_began = 1 /*!80000 , SESSION innodb_lock_wait_timeout = @tower_idempotency_lock_wait */";

/// Only where no transaction is open: with autocommit switched on, it would be committed.
const LEAVE: &str = "SET SESSION autocommit = @tower_idempotency_autocommit,
    /*!80000 SESSION innodb_lock_wait_timeout = @tower_idempotency_lock_wait, */
    SESSION wait_timeout = @tower_idempotency_wait_timeout";

/// In a transaction of its own, so that its lock isn't held while a handler runs.
const DELETE_EXPIRED: &str = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
DELETE FROM {table} WHERE expires - {now} <= 0 AND record_key =";

/// One row, always: the clock, and the record or NULLs. The columns of [`Columns`](crate::store::sql::Columns).
const READ: &str = "SELECT micros, fingerprint_tag, fingerprint, nonce, 1, fence, IF(response IS NULL, 2, 1), expires, expires, response
FROM (SELECT {now} AS micros) AS clock LEFT JOIN {table} ON record_key =";

/// Also one that isn't committed.
const READ_UNCOMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
SELECT EXISTS (SELECT 1 FROM {table} WHERE record_key =";

const IS_COMMITTED: &str = "SELECT EXISTS (SELECT 1 FROM {table} WHERE (record_key, nonce) =";

/// Of sessions that wait for each statement's locks as long as they always do.
const BOUND_WAIT: &str = "SET @tower_idempotency_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1";
const RESTORE_WAIT: &str = "SET SESSION innodb_lock_wait_timeout = @tower_idempotency_lock_wait";

/// If the row isn't the claim's any more, another's is not waited for. By itself it commits nothing: a handler that has switched
/// autocommit on has committed, and its record stays without a response.
const SAVE: &str = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
UPDATE {table} SET fence = GREATEST(fence, ?), expires = {now} + ?, response = ?
WHERE record_key = ? AND nonce = ? AND @@SESSION.autocommit = 0";

/// Of a row that the handler has committed by itself.
const SAVE_UNKNOWN: &str = "UPDATE {table} SET expires = {now} + ? WHERE record_key = ? AND nonce = ? AND response IS NULL";

/// Of an unexpired record.
const FORGET: &str = "DELETE FROM {table} WHERE record_key = ? AND expires - {now} > 0";

/// The statements with a table's name in them.
#[derive(Debug)]
pub(super) struct TransactionSql {
    pub(super) read: Statement,
    pub(super) save: Statement,
    save_unknown: Statement,
    pub(super) forget: Statement,
    /// Sets the savepoint in the transaction.
    pub(super) begin: Statement,
    /// The savepoint proves that nothing has ended the transaction.
    pub(super) commit: Statement,
    /// Likewise.
    pub(super) undo: Statement,
    pub(super) roll_back: Statement,
    // What goes on with an argument.
    enter: String,
    insert: String,
    delete_expired: String,
    look: String,
    read_uncommitted: String,
    is_committed: String,
    read_locked: String,
    restore_wait: String,
}

impl TransactionSql {
    pub(super) fn new(table: &TableName) -> Self {
        Self::built(|template| filled(template, table))
    }

    /// Of texts that are made of templates like this.
    pub(super) fn built(fill: impl Fn(&str) -> String) -> Self {
        let statement = |template: &str| Statement::new(fill(template));
        Self {
            read: statement(&format!("{READ} ?")),
            save: statement(SAVE),
            save_unknown: statement(SAVE_UNKNOWN),
            forget: statement(FORGET),
            begin: statement(&format!("{BEGIN}; {SAVEPOINT}")),
            commit: statement(&format!("{RELEASE_SAVEPOINT}; COMMIT; {LEAVE}")),
            undo: statement(&format!("{ROLLBACK_TO_SAVEPOINT}; ROLLBACK; {LEAVE}")),
            roll_back: statement(&format!("ROLLBACK; {LEAVE}")),
            enter: fill(ENTER),
            insert: fill(INSERT),
            delete_expired: fill(DELETE_EXPIRED),
            look: fill(&format!("ROLLBACK; {LEAVE}; {READ}")),
            read_uncommitted: fill(READ_UNCOMMITTED),
            is_committed: fill(&format!("ROLLBACK; {LEAVE}; {IS_COMMITTED}")),
            read_locked: fill(&format!("COMMIT; {BOUND_WAIT}; {READ}")),
            restore_wait: fill(RESTORE_WAIT),
        }
    }

    /// Begins the handler's transaction with the key's row.
    pub(super) fn open(&self, key: &RecordKey, fingerprint: &Fingerprint, terms: &Terms) -> String {
        let Self { enter, insert, .. } = self;
        let kept = to_micros(terms.run_limit().saturating_add(terms.retention()));
        let (tag, seconds) = (fingerprint.tag().to_u16(), whole_seconds(terms.run_limit()));
        let (digest, nonce) = (
            literal(fingerprint.digest()),
            literal(terms.nonce().as_bytes()),
        );
        let key = literal(key.as_bytes());
        format!(
            "{enter} {seconds}); {insert} ({key}, {tag}, {digest}, {nonce}, LAST_INSERT_ID({NOW}), {NOW} + {kept})"
        )
    }

    /// The same, after an expired row was removed.
    pub(super) fn open_over_expired(
        &self,
        key: &RecordKey,
        fingerprint: &Fingerprint,
        terms: &Terms,
    ) -> String {
        let delete = &self.delete_expired;
        let open = self.open(key, fingerprint, terms);
        format!("{delete} {}; {open}", literal(key.as_bytes()))
    }

    /// Gives up what [`open`](Self::open) has begun, and reads the record.
    pub(super) fn look(&self, key: &RecordKey) -> String {
        format!("{} {}", self.look, literal(key.as_bytes()))
    }

    /// The same, and whether there is a row that isn't committed.
    pub(super) fn look_uncommitted(&self, key: &RecordKey) -> String {
        let (look, exists) = (self.look(key), &self.read_uncommitted);
        format!("{look}; {exists} {})", literal(key.as_bytes()))
    }

    /// Gives up what is left of a transaction that had ended, and tells whether the claim's row was committed.
    pub(super) fn is_committed(&self, claim: &Claim) -> String {
        let (key, nonce) = (claim.key(), claim.nonce());
        format!(
            "{} ({}, {}))",
            self.is_committed,
            literal(key.as_bytes()),
            literal(nonce.as_bytes())
        )
    }

    /// Keeps the claim's row, which has no response, for so long.
    pub(super) fn save_unknown(&self, claim: &Claim, retention: Duration) -> String {
        let (key, nonce) = (claim.key(), claim.nonce());
        self.save_unknown.between_commits(&[
            to_micros(retention).to_string(),
            literal(key.as_bytes()),
            literal(nonce.as_bytes()),
        ])
    }

    /// The record, after any transaction that has written it has ended. What a stranger has left open in the session is
    /// committed first: MariaDB refuses to lock a row that is newer than what such a transaction has read.
    pub(super) fn read_locked(&self, key: &RecordKey) -> String {
        let (read, restore) = (&self.read_locked, &self.restore_wait);
        format!(
            "{read} {} LOCK IN SHARE MODE; {restore}",
            literal(key.as_bytes())
        )
    }
}

/// The server counts in seconds, and not from 0.
fn whole_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs();
    seconds
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
        .clamp(1, LONGEST_WAIT)
}

/// A year: what `wait_timeout` takes at most.
const LONGEST_WAIT: u64 = 31_536_000;
