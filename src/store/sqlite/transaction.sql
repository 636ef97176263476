-- tower-idempotency, sqlite::TransactionStore, schema version 1. Safe to run more than once. Needs SQLite 3.37.
-- Times are microseconds since 1970 by SQLite's clock. A record counts as absent once `expires` has come.
CREATE TABLE IF NOT EXISTS tower_idempotency_schema (
    name    TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS tower_idempotency_transactions (
    record_key      BLOB    NOT NULL CHECK (length(record_key) = 32),
    fingerprint_tag INTEGER NOT NULL,
    fingerprint     BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    nonce           BLOB    NOT NULL CHECK (length(nonce) = 16),
    fence           INTEGER NOT NULL,
    expires         INTEGER NOT NULL,
    response        BLOB    -- NULL: the handler ended the transaction by itself, its outcome is unknown
) STRICT;

-- A rowid table with an index: WITHOUT ROWID costs twice as much for wide rows under random keys.
CREATE UNIQUE INDEX IF NOT EXISTS tower_idempotency_transactions_key ON tower_idempotency_transactions (record_key);
CREATE INDEX IF NOT EXISTS tower_idempotency_transactions_expires ON tower_idempotency_transactions (expires);

INSERT OR IGNORE INTO tower_idempotency_schema (name, version) VALUES ('transactions', 1);
