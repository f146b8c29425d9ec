-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_buffer.buffered_cells (
    id          BIGINT      NOT NULL AUTO_INCREMENT PRIMARY KEY,
    cluster     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'whose cell this is a copy of',
    term        INT         NOT NULL COMMENT 'of that cluster, when the copy was made',
    datastore   VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard       INT         NOT NULL,
    epoch       INT         NULL COMMENT 'NULL: an unnumbered copy',
    added_id    BIGINT      NULL,
    row_key     BINARY(16)  NOT NULL,
    column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref_key     BIGINT      NOT NULL,
    body        MEDIUMBLOB  NOT NULL,
    created_at  DATETIME(6) NULL,
    traceparent VARCHAR(55) CHARACTER SET ascii COLLATE ascii_bin NULL,
    buffered_at DATETIME(6) NOT NULL,
    UNIQUE KEY numbered (cluster, datastore, shard, epoch, added_id),
    KEY cell (datastore, row_key, column_name, ref_key)
) ENGINE = InnoDB;
