-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.datastores (
    name       VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    shards     INT         NOT NULL,
    partitions INT         NOT NULL,
    created_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;
