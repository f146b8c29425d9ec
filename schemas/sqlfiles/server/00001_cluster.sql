-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.cluster (
    id           TINYINT     NOT NULL PRIMARY KEY,
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    column_limit INT         NOT NULL DEFAULT 64
) ENGINE = InnoDB;
