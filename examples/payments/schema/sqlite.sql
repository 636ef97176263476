-- The keys are not unique here on purpose: a second charge under one key would show.
CREATE TABLE IF NOT EXISTS charges (
    number          INTEGER NOT NULL PRIMARY KEY,
    id              TEXT    NOT NULL UNIQUE,
    idempotency_key TEXT    NOT NULL,
    account         TEXT    NOT NULL,
    amount          INTEGER NOT NULL,
    currency        TEXT    NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS charges_of_account ON charges (account);

CREATE TABLE IF NOT EXISTS refunds (
    id     TEXT    NOT NULL PRIMARY KEY,
    charge TEXT    NOT NULL UNIQUE REFERENCES charges (id),
    amount INTEGER NOT NULL
) STRICT;
