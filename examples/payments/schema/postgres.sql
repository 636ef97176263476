-- Sent as one query, so one transaction. Of servers that start together the first makes the tables: IF NOT EXISTS alone
-- fails for the second.
SELECT pg_advisory_xact_lock(hashtext('payments'));

-- The keys are not unique here on purpose: a second charge under one key would show.
CREATE TABLE IF NOT EXISTS charges (
    number          bigint  NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id              text    NOT NULL UNIQUE,
    idempotency_key text    NOT NULL,
    account         text    NOT NULL,
    amount          bigint  NOT NULL,
    currency        text    NOT NULL
);
CREATE INDEX IF NOT EXISTS charges_of_account ON charges (account);

CREATE TABLE IF NOT EXISTS refunds (
    id     text   NOT NULL PRIMARY KEY,
    charge text   NOT NULL UNIQUE REFERENCES charges (id),
    amount bigint NOT NULL
);
