package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

// keysPerLook bounds the keys that one statement looks up.
const keysPerLook = 250

// lookUp calls found for each group whose key is in entity, with its cell, the
// body in stored form.
func (t *tx) lookUp(ctx context.Context, groups []*group, found func(g *group, c *cellog.Cell)) error {
	for len(groups) > 0 {
		part := groups[:min(len(groups), keysPerLook)]
		groups = groups[len(part):]
		var sb strings.Builder
		sb.WriteString("SELECT " + cellFields + " FROM " + t.db + ".entity WHERE ")
		args := make([]any, 0, 3*len(part))
		for i, g := range part {
			if i > 0 {
				sb.WriteString(" OR ")
			}
			sb.WriteString("(row_key = ? AND column_name = ? AND ref_key = " + strconv.FormatInt(int64(g.key.Ref), 10) + ")")
			args = append(args, g.key.Row[:], g.key.Column)
		}
		rows, err := t.conn.QueryContext(ctx, sb.String(), args...)
		if err != nil {
			return err
		}
		err = each(rows, func() error {
			var trace sql.NullString
			c, err := scanCell(rows, &trace)
			if err != nil {
				return err
			}
			c.Datastore, c.Shard, c.TraceParent = t.route.Datastore, t.route.Shard, trace.String
			if g := t.batch.byKey[c.Key]; g != nil && !g.decided {
				found(g, &c)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// resolve finds out what became of an attempt whose answer was lost. It takes
// the shard_log lock on a new connection: while it is held the old session has
// either committed or never will. It tries until ctx is done.
func (s *Store) resolve(ctx context.Context, route storage.Route, b *batch) error {
	n, err := s.node(route)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := s.resolveOnce(ctx, n, route, b)
		if err == nil {
			return nil
		}
		if f := (finalError{}); errors.As(err, &f) {
			return f.error
		}
		if !pause(ctx, min(try, 10)) {
			return fmt.Errorf("%w (%w)", storage.ErrOutcomeUnknown, err)
		}
	}
}

func (s *Store) resolveOnce(ctx context.Context, n *node, route storage.Route, b *batch) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TransactionTimeout)
	defer cancel()
	conn, err := n.write.Conn(ctx)
	if err != nil {
		return err
	}
	t := &tx{s: s, conn: conn, route: route, db: quote(route.Datastore, route.Shard), batch: b, begun: true}
	defer t.close()
	rows, err := conn.QueryContext(ctx, begin+"SELECT epoch, last_added_id FROM "+t.db+".shard_log WHERE id = 1 FOR UPDATE")
	if err != nil {
		return err
	}
	var epoch cellog.Epoch
	var last cellog.AddedID
	if err := each(rows, func() error { return rows.Scan(&epoch, &last) }); err != nil {
		return err
	}
	if epoch != route.Epoch {
		return finalError{fmt.Errorf("%w: the shard went from epoch %d to %d", storage.ErrOutcomeUnknown, route.Epoch, epoch)}
	}
	k, err := t.known(ctx)
	if err != nil {
		return err
	}
	open := b.open()
	found := make(map[*group]*cellog.Cell, len(open))
	if err := t.lookUp(ctx, open, func(g *group, c *cellog.Cell) { found[g] = c }); err != nil {
		return err
	}
	if len(found) < len(open) {
		// One transaction holds them all, so it did not commit. Whatever was
		// found came from others, and the next attempt meets it as duplicates.
		return finalError{fmt.Errorf("%w: the answer was lost and the transaction was not committed", errRedo)}
	}
	// They are most likely this transaction's. But another one may have stored
	// equal cells while the answer was lost, and has said so: Same is true either
	// way, and no two puts are ever answered Created for one cell.
	for _, g := range open {
		b.stands(g, found[g], k)
	}
	return nil
}

// finalError is a result of resolveOnce that another look cannot change.
type finalError struct{ error }
