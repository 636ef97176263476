-- tower-idempotency, postgres::LeaseStore, schema version 1. Safe to run more than once.
-- Times are microseconds since 1970 by the database's clock. A record counts as absent once `expires` has come.
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
    response        BYTEA
);

CREATE INDEX IF NOT EXISTS tower_idempotency_leases_expires ON tower_idempotency_leases (expires);

COMMENT ON TABLE tower_idempotency_leases IS 'tower-idempotency leases, schema version 1';
