-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.index_applied (
    datastore   VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    index_name  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard       INT         NOT NULL COMMENT 'where the cells come from: a shard of this server',
    column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    added_id    BIGINT      NOT NULL COMMENT 'the cells up to it are in the entries of all servers',
    created_at  DATETIME(6) NOT NULL COMMENT 'of that cell',
    PRIMARY KEY (datastore, index_name, shard, column_name)
) ENGINE = InnoDB;
