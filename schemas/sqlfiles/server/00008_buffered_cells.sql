-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_buffer.buffered_cells (
    id          BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
    cluster     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'whose cell this is an unnumbered copy of',
    datastore   VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard       INT         NOT NULL,
    row_key     BINARY(16)  NOT NULL,
    column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref_key     BIGINT      NOT NULL,
    body        MEDIUMBLOB  NOT NULL,
    traceparent VARCHAR(55) CHARACTER SET ascii COLLATE ascii_bin NULL,
    buffered_at DATETIME(6) NOT NULL,
    KEY shard (cluster, datastore, shard),
    KEY cell (datastore, row_key, column_name, ref_key)
) ENGINE = InnoDB;
