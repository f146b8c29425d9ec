-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.index_states (
    datastore  VARCHAR(31)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    index_name VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version    INT          NOT NULL,
    definition MEDIUMTEXT   NOT NULL,
    state      VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'building, ready or degraded',
    updated_at DATETIME(6)  NOT NULL,
    PRIMARY KEY (datastore, index_name, version)
) ENGINE = InnoDB;
