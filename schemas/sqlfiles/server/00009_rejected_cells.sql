-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_buffer.rejected_cells (
    id              BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    datastore       VARCHAR(31)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard           INT          NOT NULL,
    row_key         BINARY(16)   NOT NULL,
    column_name     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref_key         BIGINT       NOT NULL,
    body            MEDIUMBLOB   NOT NULL,
    reason          VARCHAR(255) NOT NULL COMMENT 'conflict, or the code of the refusal',
    winner_epoch    INT          NULL,
    winner_added_id BIGINT       NULL,
    winner_body     MEDIUMBLOB   NULL,
    rejected_at     DATETIME(6)  NOT NULL,
    KEY cell (datastore, row_key, column_name, ref_key)
) ENGINE = InnoDB;
