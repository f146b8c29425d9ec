-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.heartbeats (
    cluster    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    beat       BIGINT      NOT NULL,
    written_at DATETIME(6) NOT NULL COMMENT 'UTC, by the clock of the process that writes it'
) ENGINE = InnoDB;
