package table

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"time"
)

// read is a query and what happens with its rows.
type read struct {
	query string
	args  []any
	row   func(*sql.Rows) error
	done  func() error // after the last row; may be nil
}

// readAll makes reads in order, as many as fit in one packet.
func readAll(ctx context.Context, q queryer, reads []read) error {
	for len(reads) > 0 {
		n, args := 0, 0
		for n < len(reads) && (n == 0 || args+len(reads[n].args) <= maxPacket) {
			args += len(reads[n].args)
			n++
		}
		if err := readPacket(ctx, q, reads[:n]); err != nil {
			return err
		}
		reads = reads[n:]
	}
	return nil
}

func readPacket(ctx context.Context, q queryer, reads []read) error {
	var b strings.Builder
	var args []any
	for i, r := range reads {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(r.query)
		args = append(args, r.args...)
	}
	rows, err := q.QueryContext(ctx, b.String(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for i, r := range reads {
		if i > 0 && !rows.NextResultSet() {
			return errors.Join(rows.Err(), errors.New("the server gave too few results"))
		}
		for rows.Next() {
			if err := r.row(rows); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if r.done != nil {
			if err := r.done(); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	begin  = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; "
	commit = "COMMIT"
)

// inTx runs a READ COMMITTED transaction: it makes the reads and then executes
// the statements that fn returns. It takes as few packets as it
// can: one for the reads, and one for the statements and the commit.
func inTx(ctx context.Context, db *sql.DB, reads []read, fn func(ctx context.Context, tx *sql.Conn) ([]*stmt, error)) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() // gives it back; a broken one is dropped there
	err = func() error {
		if len(reads) == 0 {
			reads = []read{{query: "SELECT NULL", row: func(*sql.Rows) error { return nil }}}
		}
		reads[0].query = begin + reads[0].query
		if err := readAll(ctx, conn, reads); err != nil {
			return err
		}
		stmts, err := fn(ctx, conn)
		if err != nil {
			return err
		}
		return execAll(ctx, conn, stmts, commit)
	}()
	if err != nil {
		rollback(ctx, conn)
	}
	return err
}

// rollback ends a transaction without a trace. A connection that cannot even do
// that is dropped, which ends it too.
func rollback(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // that is the answer when it is dropped
	}
}
