-- The keys are not unique here on purpose: a second charge under one key would show.
CREATE TABLE IF NOT EXISTS charges (
    number          BIGINT       NOT NULL PRIMARY KEY AUTO_INCREMENT,
    id              CHAR(36)     NOT NULL UNIQUE,
    idempotency_key VARCHAR(255) NOT NULL,
    account         VARCHAR(255) NOT NULL,
    amount          BIGINT       NOT NULL,
    currency        CHAR(3)      NOT NULL,
    INDEX charges_of_account (account)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS refunds (
    id     CHAR(36) NOT NULL PRIMARY KEY,
    charge CHAR(36) NOT NULL UNIQUE,
    amount BIGINT   NOT NULL,
    FOREIGN KEY (charge) REFERENCES charges (id)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
