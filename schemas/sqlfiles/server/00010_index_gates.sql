-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.index_gates (
    datastore VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard     INT         NOT NULL,
    PRIMARY KEY (datastore, shard)
) ENGINE = InnoDB COMMENT 'index transactions hold a shared lock on the rows of the shards that they write';
