-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.terms (
    cluster     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    term        INT         NOT NULL,
    state       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'claimed or open',
    node        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    server_uuid VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    updated_at  DATETIME(6) NOT NULL
) ENGINE = InnoDB;
