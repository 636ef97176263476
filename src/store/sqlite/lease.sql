-- tower-idempotency, sqlite::LeaseStore, schema version 1. Safe to run more than once. Needs SQLite 3.37.
-- Times are microseconds since 1970 by SQLite's clock. A record counts as absent once `expires` has come.
CREATE TABLE IF NOT EXISTS tower_idempotency_schema (
    name    TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS tower_idempotency_leases (
    record_key      BLOB    NOT NULL CHECK (length(record_key) = 32),
    fingerprint_tag INTEGER NOT NULL,
    fingerprint     BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    nonce           BLOB    NOT NULL CHECK (length(nonce) = 16),
    attempt         INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    state           INTEGER NOT NULL CHECK (state IN (0, 1, 2)), -- running, completed, abandoned
    lease_end       INTEGER NOT NULL, -- of a completed record: the same as expires
    expires         INTEGER NOT NULL CHECK (expires >= lease_end),
    response        BLOB,
    steps           TEXT -- of a run that isn't completed: what it has done, each note appended, in hexadecimal digits
) STRICT;

-- A rowid table with an index: WITHOUT ROWID costs twice as much for wide rows under random keys.
CREATE UNIQUE INDEX IF NOT EXISTS tower_idempotency_leases_key ON tower_idempotency_leases (record_key);
CREATE INDEX IF NOT EXISTS tower_idempotency_leases_expires ON tower_idempotency_leases (expires);

INSERT OR IGNORE INTO tower_idempotency_schema (name, version) VALUES ('leases', 1);
