-- Whose session it is.
CREATE TABLE IF NOT EXISTS sessions (
    token    TEXT NOT NULL PRIMARY KEY,
    customer TEXT NOT NULL
) STRICT;

-- The keys are not unique here on purpose: a second charge under one key would show.
CREATE TABLE IF NOT EXISTS charges (
    number          INTEGER NOT NULL PRIMARY KEY,
    id              TEXT    NOT NULL UNIQUE,
    idempotency_key TEXT    NOT NULL,
    customer        TEXT    NOT NULL,
    items           TEXT    NOT NULL,
    amount          INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS charges_of_customer ON charges (customer);
