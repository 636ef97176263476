-- tower-idempotency, mysql::TransactionStore, schema version 1. Safe to run more than once. Needs MariaDB 10.5 or MySQL 8.0.
-- Times are microseconds since 1970 by the server's clock. A record counts as absent once `expires` has come.
CREATE TABLE IF NOT EXISTS tower_idempotency_transactions (
    record_key      BINARY(32) NOT NULL,
    fingerprint_tag INT        NOT NULL,
    fingerprint     BINARY(32) NOT NULL,
    nonce           BINARY(16) NOT NULL,
    fence           BIGINT     NOT NULL,
    expires         BIGINT     NOT NULL,
    response        LONGBLOB, -- NULL: the handler ended the transaction by itself, its outcome is unknown
    PRIMARY KEY (record_key),
    KEY expires (expires)
) ENGINE = InnoDB COMMENT = 'tower-idempotency transactions, schema version 1';
