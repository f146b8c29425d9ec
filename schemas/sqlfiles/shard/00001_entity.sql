-- +goose Up
CREATE TABLE IF NOT EXISTS entity (
    added_id    BIGINT       NOT NULL PRIMARY KEY COMMENT 'given by shard_log, never by the server',
    epoch       INT          NOT NULL,
    row_key     BINARY(16)   NOT NULL,
    column_name VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref_key     BIGINT       NOT NULL,
    body        MEDIUMBLOB   NOT NULL,
    created_at  DATETIME(6)  NOT NULL,
    traceparent VARCHAR(55)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    UNIQUE KEY cell (row_key, column_name, ref_key)
) ENGINE = InnoDB;
