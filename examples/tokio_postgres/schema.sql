BEGIN;
-- For servers that start together.
SELECT pg_advisory_xact_lock(hashtext('idempotency'));

CREATE TABLE IF NOT EXISTS idempotency (
    record_key bytea PRIMARY KEY,
    fingerprint_tag int4 NOT NULL,
    fingerprint bytea NOT NULL,
    nonce bytea NOT NULL,
    fence int8 NOT NULL,
    response bytea, -- NULL: whether anything happened is unknown
    expires timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS idempotency_expires ON idempotency (expires);
COMMIT;
