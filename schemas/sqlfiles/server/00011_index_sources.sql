-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.index_sources (
    datastore  VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    index_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard      INT         NOT NULL COMMENT 'where the cells come from',
    number     BIGINT      NOT NULL COMMENT 'of the assignment; whoever has a lower one is refused',
    PRIMARY KEY (datastore, index_name, shard)
) ENGINE = InnoDB;
