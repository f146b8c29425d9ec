-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.pauses (
    cluster    VARCHAR(64)  CHARACTER SET ascii   COLLATE ascii_bin NOT NULL PRIMARY KEY,
    paused     TINYINT      NOT NULL COMMENT '1: its tailer publishes nothing; 0: it was resumed',
    who        VARCHAR(100) CHARACTER SET utf8mb4 NOT NULL,
    reason     VARCHAR(400) CHARACTER SET utf8mb4 NOT NULL,
    changed_at DATETIME(6)  NOT NULL COMMENT 'UTC; grows with each change, so that of two nodes'' rows the newer one counts'
) ENGINE = InnoDB;
