package mysqlreplica

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/cellog/cellog/internal/mysqlconn"
)

// Server says what a server is.
type Server struct {
	// MariaDB is false for MySQL.
	MariaDB bool
	// Version is what the server calls itself.
	Version string
	// ID names the server for good: MySQL's server_uuid; MariaDB has none, so
	// there it is mariadb-server-id-N.
	ID string
	// ReadOnly says that the server refuses writes of ordinary accounts.
	ReadOnly bool
}

// Identity asks a server what it is.
func Identity(ctx context.Context, db *sql.DB) (Server, error) {
	var s Server
	if err := db.QueryRowContext(ctx, "SELECT VERSION(), "+mysqlconn.ReadOnly).Scan(&s.Version, &s.ReadOnly); err != nil {
		return Server{}, fmt.Errorf("mysqlreplica: ask what the server is: %w", err)
	}
	s.MariaDB = strings.Contains(s.Version, "MariaDB")
	query := "SELECT @@global.server_uuid"
	if s.MariaDB {
		query = "SELECT CONCAT('mariadb-server-id-', @@global.server_id)"
	}
	if err := db.QueryRowContext(ctx, query).Scan(&s.ID); err != nil {
		return Server{}, fmt.Errorf("mysqlreplica: ask for the server's id: %w", err)
	}
	return s, nil
}

// SetReadOnly makes a server refuse the writes of ordinary accounts (MySQL:
// those of administrators too), or take them. It lasts until the server
// restarts: then its configuration counts.
func SetReadOnly(ctx context.Context, db *sql.DB, readOnly bool) error {
	s, err := Identity(ctx, db)
	if err != nil {
		return err
	}
	q := "SET GLOBAL read_only = OFF" // and with it MySQL's super_read_only
	switch {
	case readOnly && s.MariaDB:
		q = "SET GLOBAL read_only = ON"
	case readOnly:
		q = "SET GLOBAL super_read_only = ON" // and with it read_only
	}
	return exec(ctx, db, q)
}

// execer is a pool or one session of it.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// exec runs a statement that holds no password.
func exec(ctx context.Context, db execer, q string) error {
	if _, err := db.ExecContext(ctx, q); err != nil {
		first, _, _ := strings.Cut(q, "\n") // of a CREATE TABLE
		return fmt.Errorf("mysqlreplica: %s: %w", first, err)
	}
	return nil
}

// text quotes text for a statement that takes no arguments.
func text(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}
