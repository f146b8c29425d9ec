-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_buffer.numbered_copies (
    cluster     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'whose cells these are copies of',
    datastore   VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard       INT         NOT NULL,
    epoch       INT         NOT NULL,
    last_id     BIGINT      NOT NULL COMMENT 'added_id of the last cell',
    tag         BIGINT      NOT NULL COMMENT 'random: a cell may have been copied more than once',
    first_id    BIGINT      NOT NULL COMMENT 'added_id of the first cell; there is none missing between them',
    term        INT         NOT NULL COMMENT 'of that cluster, when the copies were made',
    cells       LONGBLOB    NOT NULL COMMENT 'schemas/forward: a run of cells',
    buffered_at DATETIME(6) NOT NULL,
    PRIMARY KEY (cluster, datastore, shard, epoch, last_id, tag),
    KEY age (buffered_at, first_id, last_id)
) ENGINE = InnoDB;
