package mysqlreplica

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
)

// batchBytes is how long an INSERT gets before it is sent; one row may be
// longer. It bounds memory, and is far below the default max_allowed_packet.
const batchBytes = 1 << 20

// copyAll copies all databases but for cluster. Each of the snapshot's sessions
// works at one database after the other.
func (r *rebuild) copyAll(ctx context.Context, snap *snapshot) error {
	for _, t := range snap.tables {
		if t.name != "" {
			r.progress.Tables++
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	jobs := make(chan []table)
	g.Go(func() error {
		defer close(jobs)
		for rest := snap.tables; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].database == rest[0].database {
				n++
			}
			select {
			case jobs <- rest[:n]:
			case <-ctx.Done():
				return ctx.Err()
			}
			rest = rest[n:]
		}
		return nil
	})
	for _, from := range snap.sessions {
		g.Go(func() error {
			for tables := range jobs {
				if err := r.copyDatabase(ctx, from, tables); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (r *rebuild) copyDatabase(ctx context.Context, from *sql.Conn, tables []table) error {
	db := tables[0].database
	row, err := oneRow(ctx, from, "SHOW CREATE DATABASE "+name(db))
	if err != nil {
		return err
	}
	if err := exec(ctx, r.to, row["Create Database"]); err != nil {
		return err
	}
	for _, t := range tables {
		if t == cluster || t.name == "" {
			continue
		}
		if err := r.copyTable(ctx, from, r.to, t); err != nil {
			return err
		}
	}
	return nil
}

func (r *rebuild) copyTable(ctx context.Context, from *sql.Conn, to *sql.DB, t table) error {
	row, err := oneRow(ctx, from, "SHOW CREATE TABLE "+t.String())
	if err != nil {
		return err
	}
	create := strings.Replace(row["Create Table"], "CREATE TABLE "+name(t.name), "CREATE TABLE "+t.String(), 1)
	if err := exec(ctx, to, create); err != nil {
		return err
	}
	cols, err := columns(ctx, from, t)
	if err != nil {
		return err
	}
	if err := r.copyRows(ctx, from, to, t, cols); err != nil {
		return fmt.Errorf("mysqlreplica: copy %s: %w", t, err)
	}
	r.done(1, 0, 0)
	return nil
}

// column is a column and how its values travel.
type column struct {
	name string
	// expr selects it as text that an INSERT understands.
	expr string
	// binary values are bytes in no character set.
	binary bool
}

func columns(ctx context.Context, from *sql.Conn, t table) ([]column, error) {
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+t.String()+" LIMIT 0")
	if err != nil {
		return nil, fmt.Errorf("mysqlreplica: columns of %s: %w", t, err)
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, fmt.Errorf("mysqlreplica: columns of %s: %w", t, err)
	}
	var out []column
	for _, ct := range types {
		c := column{name: ct.Name(), expr: name(ct.Name())}
		switch n := ct.DatabaseTypeName(); n {
		case "DATETIME", "TIMESTAMP", "DATE":
			c.expr = "CAST(" + c.expr + " AS CHAR)" // else the driver makes a time.Time of it
		default:
			c.binary = strings.HasSuffix(n, "BLOB") || strings.HasSuffix(n, "BINARY") || n == "BIT" || n == "GEOMETRY"
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

// copyRows streams a table, in the order of its primary key, as InnoDB keeps
// it, into INSERTs of many rows.
func (r *rebuild) copyRows(ctx context.Context, from *sql.Conn, to *sql.DB, t table, cols []column) error {
	var names, exprs []string
	for _, c := range cols {
		names, exprs = append(names, name(c.name)), append(exprs, c.expr)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rows, err := from.QueryContext(ctx, "SELECT "+strings.Join(exprs, ", ")+" FROM "+t.String())
	if err != nil {
		return err
	}
	defer rows.Close()
	defer cancel() // before Close, which would read the rest of the table
	insert := "INSERT INTO " + t.String() + " (" + strings.Join(names, ", ") + ") VALUES "
	vals, ptrs := make([]sql.RawBytes, len(cols)), make([]any, len(cols))
	for i := range vals {
		ptrs[i] = &vals[i]
	}
	var buf []byte
	var n, size int64
	flush := func() error {
		if n == 0 {
			return nil
		}
		if _, err := to.ExecContext(ctx, string(buf)); err != nil {
			return err
		}
		r.done(0, n, size)
		buf, n, size = buf[:0], 0, 0
		return nil
	}
	for rows.Next() {
		if err := rows.Scan(ptrs...); err != nil {
			return err
		}
		if n == 0 {
			buf = append(buf, insert...)
		} else {
			buf = append(buf, ',')
		}
		n++
		for i, v := range vals {
			buf = append(buf, "(,"[min(i, 1)])
			buf = appendValue(buf, v, cols[i].binary)
			size += int64(len(v))
		}
		buf = append(buf, ')')
		if len(buf) >= batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return flush()
}

// appendValue appends a value as a literal. The session's character set is
// UTF-8, in which no part of a letter looks like a quote or a backslash.
func appendValue(buf []byte, v []byte, binary bool) []byte {
	if v == nil {
		return append(buf, "NULL"...)
	}
	if binary {
		buf = append(buf, "_binary"...)
	}
	buf = append(buf, '\'')
	for _, b := range v {
		if b == '\'' || b == '\\' {
			buf = append(buf, '\\')
		}
		buf = append(buf, b)
	}
	return append(buf, '\'')
}

func (r *rebuild) done(tables int, rows, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.TablesDone += tables
	r.progress.Rows += rows
	r.progress.Bytes += bytes
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.progress)
	}
}

// name quotes the name of a database, table or column.
func name(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }
