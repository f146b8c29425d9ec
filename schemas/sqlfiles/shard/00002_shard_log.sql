-- +goose Up
CREATE TABLE IF NOT EXISTS shard_log (
    id              TINYINT     NOT NULL PRIMARY KEY,
    epoch           INT         NOT NULL,
    term            INT         NOT NULL,
    state           VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'open, closed or moving:CLUSTER',
    last_added_id   BIGINT      NOT NULL,
    last_created_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;
