package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// Copy says what CopyShard copies. The pools' accounts may do everything.
type Copy struct {
	From, To  *sql.DB
	Datastore string
	Shard     cellog.ShardID
	// State is that of the shard on the server that is copied to, without which
	// nothing is changed there: another mover gives it another one, and so does
	// whoever opens it.
	State string
}

// ErrNotCopying is returned by CopyShard when the shard is in another state by
// now: another mover has taken over.
var ErrNotCopying = errors.New("the copy of the shard is another mover's by now")

// CopyShard copies the index tables of a shard from one server to another, and
// what the server knows of them: states, assignment numbers and progress. The
// shard must be closed on the first server; on the other one, tables that are
// there are replaced. It returns the number of rows.
func CopyShard(ctx context.Context, c Copy) (n int64, err error) {
	tables, err := OfShard(ctx, c.From, c.Datastore, c.Shard)
	if err != nil {
		return 0, fmt.Errorf("index tables of shard %s: %w", cellog.DatabaseName(c.Datastore, c.Shard), err)
	}
	if err := passGate(ctx, c.From, c.Datastore, c.Shard); err != nil {
		return 0, err
	}
	old, err := OfShard(ctx, c.To, c.Datastore, c.Shard)
	if err != nil {
		return 0, err
	}
	for _, t := range old {
		if err := c.clear(ctx, t, slices.Contains(tables, t)); err != nil {
			return 0, fmt.Errorf("clear %s%s: %w", c.database(), t, err)
		}
	}
	for _, t := range tables {
		rows, err := c.table(ctx, t)
		if err != nil {
			return n, fmt.Errorf("copy %s%s: %w", c.database(), t, err)
		}
		n += rows
	}
	return n, c.meta(ctx)
}

func (c *Copy) database() string { return "`" + cellog.DatabaseName(c.Datastore, c.Shard) + "`." }

// deadlocks bounds how often a change is made again: an indexer is at work on
// other shards.
const deadlocks = 10

// change is one transaction on the new server, if the shard is in c.State there,
// which nobody changes meanwhile. f may be called again.
func (c *Copy) change(ctx context.Context, f func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		if err := c.changeOnce(ctx, f); !mysqlconn.IsDeadlock(err) || try == deadlocks {
			return err
		}
	}
}

func (c *Copy) changeOnce(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := c.To.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	var state string
	if err := tx.QueryRowContext(ctx, "SELECT state FROM "+c.database()+"shard_log WHERE id = 1 LOCK IN SHARE MODE").Scan(&state); err != nil {
		return err
	}
	if state != c.State {
		return fmt.Errorf("%w: it is %s", ErrNotCopying, state)
	}
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// definition is the statement that makes a table.
func (c *Copy) definition(ctx context.Context, db *sql.DB, table string) (ddl string, err error) {
	var name string
	err = db.QueryRowContext(ctx, "SHOW CREATE TABLE "+c.database()+"`"+table+"`").Scan(&name, &ddl)
	return ddl, err
}

// clearRows is how many old rows go at a time.
const clearRows = 5000

// clear empties a table of the new server. One that is of another shape goes: a
// DROP heeds no lock, but the mover that sends it has just seen that it may.
func (c *Copy) clear(ctx context.Context, table string, wanted bool) error {
	if wanted {
		is, err := c.definition(ctx, c.To, table)
		if err != nil {
			return err
		}
		want, err := c.definition(ctx, c.From, table)
		if err != nil {
			return err
		}
		wanted = is == want
	}
	for gone := int64(clearRows); wanted && gone == clearRows; {
		err := c.change(ctx, func(tx *sql.Tx) error {
			res, err := tx.ExecContext(ctx, "DELETE FROM "+c.database()+"`"+table+"` LIMIT "+strconv.Itoa(clearRows))
			if err != nil {
				return err
			}
			gone, err = res.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
	}
	if wanted {
		return nil
	}
	if err := c.change(ctx, func(*sql.Tx) error { return nil }); err != nil {
		return err
	}
	_, err := c.To.ExecContext(ctx, "DROP TABLE IF EXISTS "+c.database()+"`"+table+"`")
	return err
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

// table makes a table, if it is not there, and fills it.
func (c *Copy) table(ctx context.Context, table string) (n int64, err error) {
	ddl, err := c.definition(ctx, c.From, table)
	if err != nil {
		return 0, err
	}
	database := c.database()
	if _, err := c.To.ExecContext(ctx, strings.Replace(ddl, "CREATE TABLE `", "CREATE TABLE IF NOT EXISTS "+database+"`", 1)); err != nil {
		return 0, err
	}
	rows, err := c.From.QueryContext(ctx, "SELECT * FROM "+database+"`"+table+"`")
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
		err := c.change(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, q, args...)
			return err
		})
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
	if err := c.To.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+database+"`"+table+"`").Scan(&there); err != nil {
		return n, err
	}
	if there != n {
		return n, fmt.Errorf("%d rows were copied, %d are there", n, there)
	}
	return n, nil
}

// meta takes over what belongs to the tables. The new server's progress is
// lowered to the old one's: its tables are no further.
func (c *Copy) meta(ctx context.Context) error {
	datastore, shard := c.Datastore, c.Shard
	for _, m := range []struct {
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
		if err := c.rows(ctx, m.query, m.insert, m.args, m.fields); err != nil {
			return fmt.Errorf("what belongs to the indexes of shard %s: %w", cellog.DatabaseName(datastore, shard), err)
		}
	}
	return nil
}

func (c *Copy) rows(ctx context.Context, query, insert string, args []any, fields int) error {
	rows, err := c.From.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var all [][]any
	for rows.Next() {
		vals, dest := make([]any, fields), make([]any, fields)
		for i := range vals {
			dest[i] = &vals[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		all = append(all, vals)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return c.change(ctx, func(tx *sql.Tx) error {
		for _, vals := range all {
			if _, err := tx.ExecContext(ctx, insert, vals...); err != nil {
				return err
			}
		}
		return nil
	})
}
