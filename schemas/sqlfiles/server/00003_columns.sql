-- +goose Up
CREATE TABLE IF NOT EXISTS cellog_meta.columns (
    datastore   VARCHAR(31) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at  DATETIME(6) NOT NULL,
    PRIMARY KEY (datastore, column_name)
) ENGINE = InnoDB;
