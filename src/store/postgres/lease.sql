-- tower-idempotency, postgres::LeaseStore, schema version 1. Safe to run more than once.
-- Times are microseconds since 1970 by the database's clock. A record counts as absent once `expires` has come.
-- No more CHECK constraints than this: Postgres reads and compiles them anew in each statement that writes.
CREATE TABLE IF NOT EXISTS tower_idempotency_leases (
    record_key      BYTEA    NOT NULL PRIMARY KEY CHECK (octet_length(record_key) = 32),
    fence           BIGINT   NOT NULL,
    lease_end       BIGINT   NOT NULL, -- of a completed record: the same as expires
    expires         BIGINT   NOT NULL,
    fingerprint_tag INTEGER  NOT NULL,
    attempt         INTEGER  NOT NULL,
    state           SMALLINT NOT NULL, -- running, completed, abandoned
    fingerprint     BYTEA    NOT NULL,
    nonce           BYTEA    NOT NULL,
    response        BYTEA,
    steps           BYTEA -- of a run that isn't completed: what it has done, each note appended
);

CREATE INDEX IF NOT EXISTS tower_idempotency_leases_expires ON tower_idempotency_leases (expires);

COMMENT ON TABLE tower_idempotency_leases IS 'tower-idempotency leases, schema version 1';
