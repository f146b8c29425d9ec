package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/storage"
)

const (
	// drainEvery is how often copies are looked for.
	drainEvery = 500 * time.Millisecond
	// drainIDs bounds the copies of one look, drainPage those that are put
	// together, PageBytes their bodies.
	drainIDs  = 5000
	drainPage = 200
	// drainTimeout bounds the puts of one page.
	drainTimeout = 5 * time.Second
)

// Final returns up to which added_id a shard's log is final; false when that is
// not known.
type Final func(datastore string, shard cellog.ShardID) (cellog.AddedID, bool)

// Drainer brings unnumbered copies to their shards, by the ordinary put, and
// deletes a copy when a put of it was answered by a cell that is final. A copy
// that lost to another body, or is refused for good, goes to rejected_cells with
// the reason and the winner. Everything it does may be done twice, or by two
// drainers at once, without harm.
//
// While a primary is away, or Kafka, no copy's body is read: there may be
// millions.
type Drainer struct {
	s     *Store
	final Final
	// answered are the copies that were put and wait to be final.
	answered map[copyID]copied
}

// copyID names a copy.
type copyID struct {
	node *node
	id   int64
}

// copied is a copy as its holder has it; put has no Body once it was put.
type copied struct {
	copyID
	datastore string
	shard     cellog.ShardID
	put       cellog.Put
	stored    cellog.Stored // the answer to its put
}

// NewDrainer returns a Drainer of a store.
func NewDrainer(s *Store, final Final) *Drainer {
	return &Drainer{s: s, final: final, answered: map[copyID]copied{}}
}

// Run drains until ctx ends.
func (d *Drainer) Run(ctx context.Context) {
	t := time.NewTicker(drainEvery)
	defer t.Stop()
	said := ""
	for {
		err := d.Once(ctx)
		switch {
		case err == nil:
			said = ""
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			d.s.cfg.Logger.Warn("copies are not drained yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Once looks at every copy once. The error joins what kept copies where they
// are, but not that their primary is away.
func (d *Drainer) Once(ctx context.Context) error {
	var errs []error
	for _, c := range d.s.clusters {
		for _, n := range c.nodes {
			if !n.isWritable() {
				continue
			}
			if err := d.node(ctx, n); err != nil {
				errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
			}
		}
	}
	for _, c := range d.answered {
		if err := d.settle(ctx, &c); err != nil {
			errs = append(errs, fmt.Errorf("node %s/%s: %w", c.node.cluster, c.node.Name, err))
		}
	}
	return errors.Join(errs...)
}

// placement is a shard, and the cluster that had it when a copy was made.
type placement struct {
	cluster, datastore string
	shard              cellog.ShardID
}

// node puts one holder's copies.
func (d *Drainer) node(ctx context.Context, n *node) error {
	var all []placement
	rows, err := n.read.QueryContext(ctx, "SELECT DISTINCT cluster, datastore, shard FROM cellog_buffer.buffered_cells")
	if err == nil {
		err = each(rows, func() error {
			var p placement
			err := rows.Scan(&p.cluster, &p.datastore, &p.shard)
			all = append(all, p)
			return err
		})
	}
	if err != nil {
		return err
	}
	d.s.metrics.observeBuffer(ctx, n, len(all) > 0)
	var errs []error
	for _, p := range all {
		errs = append(errs, d.placement(ctx, n, p))
	}
	return errors.Join(errs...)
}

// placement puts a holder's copies of one shard, if its primary is there.
func (d *Drainer) placement(ctx context.Context, n *node, p placement) error {
	route, err := d.s.routes.Route(p.datastore, p.shard)
	if errors.Is(err, storage.ErrUnavailable) {
		return nil // nobody has it open: wait
	}
	if err != nil {
		return err
	}
	primary, err := d.s.node(route)
	if err != nil || !primary.isWritable() {
		return err
	}
	for after := int64(0); ; {
		var ids []int64
		rows, err := n.read.QueryContext(ctx, "SELECT id FROM cellog_buffer.buffered_cells WHERE cluster = ? AND datastore = ? AND shard = ? AND epoch IS NULL AND id > ? ORDER BY id LIMIT ?",
			p.cluster, p.datastore, int(p.shard), after, drainIDs)
		if err == nil {
			err = each(rows, func() error {
				err := rows.Scan(&after)
				if _, ok := d.answered[copyID{n, after}]; !ok {
					ids = append(ids, after)
				}
				return err
			})
		}
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		for len(ids) > 0 {
			page, err := d.copies(ctx, n, p, ids[:min(len(ids), drainPage)])
			if err != nil {
				return err
			}
			if len(page) == 0 { // another drainer was faster
				ids = ids[min(len(ids), drainPage):]
				continue
			}
			last := page[len(page)-1].id
			for len(ids) > 0 && ids[0] <= last {
				ids = ids[1:]
			}
			if err := d.put(ctx, page); err != nil {
				return err
			}
		}
	}
}

// copies reads copies of one shard by their ids, in order, up to PageBytes.
func (d *Drainer) copies(ctx context.Context, n *node, p placement, ids []int64) (page []copied, err error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	rows, err := n.read.QueryContext(ctx, "SELECT id, row_key, column_name, ref_key, body, traceparent FROM cellog_buffer.buffered_cells WHERE id IN (?"+
		strings.Repeat(",?", len(ids)-1)+") AND epoch IS NULL ORDER BY id", args...)
	if err != nil {
		return nil, err
	}
	size := 0
	err = each(rows, func() error {
		if size > PageBytes {
			return errEnough
		}
		c := copied{copyID: copyID{node: n}, datastore: p.datastore, shard: p.shard}
		var row []byte
		var trace sql.NullString
		if err := rows.Scan(&c.id, &row, &c.put.Column, &c.put.Ref, &c.put.Body, &trace); err != nil {
			return err
		}
		copy(c.put.Row[:], row)
		c.put.TraceParent = trace.String
		page = append(page, c)
		size += len(c.put.Body)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return page, err
}

// put puts copies of one shard.
func (d *Drainer) put(ctx context.Context, cs []copied) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	puts := make([]cellog.Put, len(cs))
	for i := range cs {
		puts[i] = cs[i].put
	}
	stored, errs := d.s.Write(ctx, cs[0].datastore, cs[0].shard, puts)
	var left []error
	for i, c := range cs {
		switch {
		case errs[i] == nil:
			c.stored, c.put.Body = stored[i], nil
			d.answered[c.copyID] = c
		case errors.Is(errs[i], storage.ErrColumnLimit):
			left = append(left, d.reject(ctx, &c, "column_limit"))
		case errors.Is(errs[i], storage.ErrUnavailable), errors.Is(errs[i], storage.ErrOutcomeUnknown):
		default:
			left = append(left, errs[i])
		}
	}
	return errors.Join(left...)
}

// settle lets a copy go whose put was answered by a cell that is final. That
// another drainer was faster is no error.
func (d *Drainer) settle(ctx context.Context, c *copied) error {
	mark, known := d.final(c.datastore, c.shard)
	if (!known || c.stored.AddedID > mark) && !failpoint.Hit("storage/settle-unfinal") {
		return nil
	}
	var err error
	if c.stored.Outcome == cellog.Conflict {
		err = d.reject(ctx, c, "conflict")
	} else {
		_, err = c.node.write.ExecContext(ctx, deleteCopy, c.id, c.put.Row[:])
	}
	if err == nil {
		delete(d.answered, c.copyID)
	}
	return err
}

const deleteCopy = "DELETE FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ? AND epoch IS NULL"

// reject moves a copy to rejected_cells, on its holder. Of two drainers the one
// that has the copy's lock first does it.
func (d *Drainer) reject(ctx context.Context, c *copied, reason string) error {
	var epoch, id, body any
	if c.stored.Outcome == cellog.Conflict {
		w, _, err := d.s.Version(ctx, c.datastore, c.put.Key, cellog.Master)
		if err != nil {
			return fmt.Errorf("the cell that stands: %w", err)
		}
		epoch, id, body = int(w.Epoch), int64(w.AddedID), w.Body
	}
	tx, err := c.node.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	var one int
	err = tx.QueryRowContext(ctx, "SELECT 1 FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ? AND epoch IS NULL FOR UPDATE", c.id, c.put.Row[:]).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO cellog_buffer.rejected_cells (datastore, shard, row_key, column_name, ref_key, body, reason, "+
		"winner_epoch, winner_added_id, winner_body, rejected_at) SELECT datastore, shard, row_key, column_name, ref_key, body, ?, ?, ?, ?, NOW(6) "+
		"FROM cellog_buffer.buffered_cells WHERE id = ?", reason, epoch, id, body, c.id); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, deleteCopy, c.id, c.put.Row[:]); err != nil {
		return err
	}
	return tx.Commit()
}
