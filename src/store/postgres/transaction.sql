-- tower-idempotency, postgres::TransactionStore, schema version 1. Safe to run more than once.
-- Times are microseconds since 1970 by the database's clock. A record counts as absent once `expires` has come.
CREATE TABLE IF NOT EXISTS tower_idempotency_transactions (
    record_key      BYTEA   NOT NULL PRIMARY KEY CHECK (octet_length(record_key) = 32),
    fence           BIGINT  NOT NULL,
    expires         BIGINT  NOT NULL,
    fingerprint_tag INTEGER NOT NULL,
    fingerprint     BYTEA   NOT NULL,
    nonce           BYTEA   NOT NULL,
    response        BYTEA   -- NULL: the handler ended the transaction by itself, its outcome is unknown
);

CREATE INDEX IF NOT EXISTS tower_idempotency_transactions_expires ON tower_idempotency_transactions (expires);

COMMENT ON TABLE tower_idempotency_transactions IS 'tower-idempotency transactions, schema version 1';
