package table

import (
	"context"
	"database/sql"
	"strings"
)

// These bound one statement. MySQL allows 65,535 arguments where
// statements are prepared.
const (
	maxRows = 500
	maxArgs = 30000
	// maxRanges bounds the conditions that are joined by OR: each is a range
	// of its own for the optimizer. (MariaDB does not look up (a, b) IN (…) by
	// the primary key.)
	maxRanges = 200
)

// stmt is a statement with its arguments: head, then one group of
// placeholders per row, then tail.
type stmt struct {
	head, tail string
	rows       int
	args       []any
	width      int
	sep        string // between groups; default ","
	group      string // the text of one group; default placeholders
}

// row adds a group of values.
func (s *stmt) row(args ...any) {
	s.width = len(args)
	s.rows++
	s.args = append(s.args, args...)
}

func (s *stmt) full() bool { return s.rows >= maxRows || len(s.args)+s.width > maxArgs }

func (s *stmt) text() string {
	group, sep := s.group, s.sep
	if group == "" {
		group = "(" + placeholders(s.width) + ")"
	}
	if sep == "" {
		sep = ","
	}
	var b strings.Builder
	b.Grow(len(s.head) + len(s.tail) + s.rows*(len(group)+len(sep)) + 1)
	b.WriteString(s.head)
	b.WriteByte(' ')
	for i := range s.rows {
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(group)
	}
	b.WriteString(s.tail)
	return b.String()
}

func placeholders(n int) string {
	if n == 0 {
		return ""
	}
	return strings.Repeat("?,", n-1) + "?"
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// maxPacket bounds the arguments that several statements send together.
const maxPacket = 2000

// execAll runs statements in order, as many as fit in one packet; those without
// rows are left out. last, if not empty, follows them.
func execAll(ctx context.Context, tx execer, stmts []*stmt, last string) error {
	var b strings.Builder
	var args []any
	flush := func() error {
		if b.Len() == 0 {
			return nil
		}
		_, err := tx.ExecContext(ctx, b.String(), args...)
		b.Reset()
		args = args[:0]
		return err
	}
	for _, s := range stmts {
		if s.rows == 0 {
			continue
		}
		if b.Len() > 0 && len(args)+len(s.args) > maxPacket {
			if err := flush(); err != nil {
				return err
			}
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(s.text())
		args = append(args, s.args...)
	}
	if last != "" && b.Len() > 0 {
		b.WriteString("; ")
	}
	b.WriteString(last)
	return flush()
}
