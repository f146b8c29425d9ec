-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.index_progress (
    datastore    VARCHAR(31)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    index_name   VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    topic        VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    partition_id INT          NOT NULL,
    next_offset  BIGINT       NOT NULL COMMENT 'all records below it are in the entries of this server',
    PRIMARY KEY (datastore, index_name, topic, partition_id)
) ENGINE = InnoDB;
