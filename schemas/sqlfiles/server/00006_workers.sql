-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.workers (
    name       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    url        VARCHAR(255) NOT NULL,
    updated_at DATETIME(6)  NOT NULL
) ENGINE = InnoDB;
