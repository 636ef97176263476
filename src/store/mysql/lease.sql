-- tower-idempotency, mysql::LeaseStore, schema version 1. Safe to run more than once. Needs MariaDB 10.5 or MySQL 8.0.
-- Times are microseconds since 1970 by the server's clock. A record counts as absent once `expires` has come.
CREATE TABLE IF NOT EXISTS tower_idempotency_leases (
    record_key      BINARY(32) NOT NULL,
    fingerprint_tag INT        NOT NULL,
    fingerprint     BINARY(32) NOT NULL,
    nonce           BINARY(16) NOT NULL,
    attempt         BIGINT     NOT NULL,
    fence           BIGINT     NOT NULL,
    state           TINYINT    NOT NULL, -- 0 running, 1 completed, 2 abandoned
    lease_end       BIGINT     NOT NULL, -- of a completed record: the same as expires
    expires         BIGINT     NOT NULL,
    response        LONGBLOB,
    steps           LONGBLOB, -- of a run that isn't completed: what it has done, each note appended
    PRIMARY KEY (record_key),
    KEY expires (expires)
) ENGINE = InnoDB COMMENT = 'tower-idempotency leases, schema version 1';
