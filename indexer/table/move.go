package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/cellog/cellog"
)

// CopyShard copies the index tables of a shard from one server to another, and
// what the server knows of them: states, assignment numbers and progress. The
// shard must be closed on the first server, and not be open on the other, where
// tables that are there are replaced. It returns the number of rows. db's
// accounts may do everything.
func CopyShard(ctx context.Context, from, to *sql.DB, datastore string, shard cellog.ShardID) (n int64, err error) {
	tables, err := OfShard(ctx, from, datastore, shard)
	if err != nil {
		return 0, fmt.Errorf("index tables of shard %s: %w", cellog.DatabaseName(datastore, shard), err)
	}
	if err := passGate(ctx, from, datastore, shard); err != nil {
		return 0, err
	}
	old, err := OfShard(ctx, to, datastore, shard)
	if err != nil {
		return 0, err
	}
	database := "`" + cellog.DatabaseName(datastore, shard) + "`."
	for _, t := range old {
		if _, err := to.ExecContext(ctx, "DROP TABLE IF EXISTS "+database+"`"+t+"`"); err != nil {
			return 0, err
		}
	}
	for _, t := range tables {
		rows, err := copyTable(ctx, from, to, database, t)
		if err != nil {
			return n, fmt.Errorf("copy %s%s: %w", database, t, err)
		}
		n += rows
	}
	return n, copyMeta(ctx, from, to, datastore, shard)
}

// passGate returns when no index transaction is under way in a shard that is
// closed: see promise 3 of the package.
func passGate(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it changes nothing
	rows, err := tx.QueryContext(ctx, "SELECT shard FROM cellog_meta.index_gates WHERE datastore = ? AND shard = ? FOR UPDATE", datastore, int(shard))
	if err != nil {
		return fmt.Errorf("gate of shard %s: %w", cellog.DatabaseName(datastore, shard), err)
	}
	return rows.Close()
}

// OfShard returns the names of a shard's index tables.
func OfShard(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID) (names []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_name LIKE 'idx\\_%' ORDER BY table_name", cellog.DatabaseName(datastore, shard))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if strings.Contains(name, "`") {
			return nil, fmt.Errorf("table %q is not cellog's", name)
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// copyBytes is how much an INSERT of copied rows may hold before it is sent.
const copyBytes = 1 << 20

// copyTable makes a table anew and fills it.
func copyTable(ctx context.Context, from, to *sql.DB, database, table string) (n int64, err error) {
	var name, ddl string
	if err := from.QueryRowContext(ctx, "SHOW CREATE TABLE "+database+"`"+table+"`").Scan(&name, &ddl); err != nil {
		return 0, err
	}
	if _, err := to.ExecContext(ctx, strings.Replace(ddl, "CREATE TABLE `", "CREATE TABLE "+database+"`", 1)); err != nil {
		return 0, err
	}
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+database+"`"+table+"`")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	group := "(" + placeholders(len(columns)) + ")"
	var args []any
	size, groups := 0, 0
	send := func() error {
		if groups == 0 {
			return nil
		}
		q := "INSERT INTO " + database + "`" + table + "` VALUES " + strings.TrimSuffix(strings.Repeat(group+",", groups), ",")
		_, err := to.ExecContext(ctx, q, args...)
		args, size, groups = args[:0], 0, 0
		return err
	}
	for rows.Next() {
		vals, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range vals {
			dest[i] = &vals[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return n, err
		}
		for _, v := range vals {
			if b, ok := v.([]byte); ok {
				size += len(b)
			}
			size += 32
		}
		args = append(args, vals...)
		groups++
		n++
		if size > copyBytes || len(args)+len(columns) > maxArgs {
			if err := send(); err != nil {
				return n, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return n, err
	}
	if err := send(); err != nil {
		return n, err
	}
	var there int64
	if err := to.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+database+"`"+table+"`").Scan(&there); err != nil {
		return n, err
	}
	if there != n {
		return n, fmt.Errorf("%d rows were copied, %d are there", n, there)
	}
	return n, nil
}

// copyMeta takes over what belongs to the tables. The new server's progress is
// lowered to the old one's: its tables are no further.
func copyMeta(ctx context.Context, from, to *sql.DB, datastore string, shard cellog.ShardID) error {
	for _, c := range []struct {
		query, insert string
		args          []any
		fields        int
	}{
		{"SELECT datastore, index_name, version, definition, state, updated_at FROM cellog_meta.index_states WHERE datastore = ?",
			"INSERT IGNORE INTO cellog_meta.index_states (datastore, index_name, version, definition, state, updated_at) VALUES (?, ?, ?, ?, ?, ?)", []any{datastore}, 6},
		{"SELECT datastore, index_name, shard, number FROM cellog_meta.index_sources WHERE datastore = ?",
			"INSERT INTO cellog_meta.index_sources (datastore, index_name, shard, number) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE number = GREATEST(number, VALUES(number))", []any{datastore}, 4},
		{"SELECT datastore, index_name, topic, partition_id, next_offset FROM cellog_meta.index_progress WHERE datastore = ?",
			"INSERT INTO cellog_meta.index_progress (datastore, index_name, topic, partition_id, next_offset) VALUES (?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE next_offset = LEAST(next_offset, VALUES(next_offset))", []any{datastore}, 5},
		{"SELECT datastore, index_name, shard, column_name, added_id, created_at FROM cellog_meta.index_applied WHERE datastore = ? AND shard = ?",
			"INSERT INTO cellog_meta.index_applied (datastore, index_name, shard, column_name, added_id, created_at) VALUES (?, ?, ?, ?, ?, ?) " +
				"ON DUPLICATE KEY UPDATE created_at = GREATEST(created_at, VALUES(created_at)), added_id = GREATEST(added_id, VALUES(added_id))", []any{datastore, int(shard)}, 6},
		{"SELECT datastore, shard FROM cellog_meta.index_gates WHERE datastore = ?",
			"INSERT IGNORE INTO cellog_meta.index_gates (datastore, shard) VALUES (?, ?)", []any{datastore}, 2},
	} {
		if err := copyRows(ctx, from, to, c.query, c.insert, c.args, c.fields); err != nil {
			return fmt.Errorf("what belongs to the indexes of shard %s: %w", cellog.DatabaseName(datastore, shard), err)
		}
	}
	return nil
}

func copyRows(ctx context.Context, from, to *sql.DB, query, insert string, args []any, fields int) error {
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		vals, dest := make([]any, fields), make([]any, fields)
		for i := range vals {
			dest[i] = &vals[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		if _, err := to.ExecContext(ctx, insert, vals...); err != nil {
			return err
		}
	}
	return rows.Err()
}
