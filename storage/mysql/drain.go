package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

const (
	// drainEvery is how often copies are looked for.
	drainEvery = 500 * time.Millisecond
	// drainPage bounds the copies of one look, drainBytes their bodies.
	drainPage = 200
	// drainTimeout bounds the puts of one page into one shard.
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
type Drainer struct {
	s     *Store
	final Final
	// answered are the copies that were put and wait to be final.
	answered map[copyID]cellog.Stored
}

// copyID names a copy.
type copyID struct {
	node *node
	id   int64
}

// copied is a copy as its holder has it.
type copied struct {
	copyID
	datastore string
	shard     cellog.ShardID
	put       cellog.Put
}

// NewDrainer returns a Drainer of a store.
func NewDrainer(s *Store, final Final) *Drainer {
	return &Drainer{s: s, final: final, answered: map[copyID]cellog.Stored{}}
}

// Run drains until ctx ends.
func (d *Drainer) Run(ctx context.Context) {
	t := time.NewTicker(drainEvery)
	defer t.Stop()
	for {
		if err := d.Once(ctx); err != nil && ctx.Err() == nil {
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
	there := map[copyID]bool{}
	for _, c := range d.s.clusters {
		for _, n := range c.nodes {
			n.mu.Lock()
			asked := n.seen && n.writable
			n.mu.Unlock()
			if !asked {
				for id := range d.answered { // not gone, only out of sight
					there[id] = there[id] || id.node == n
				}
				continue
			}
			if err := d.node(ctx, n, there); err != nil {
				errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
				for id := range d.answered {
					there[id] = there[id] || id.node == n
				}
			}
		}
	}
	for id := range d.answered { // another drainer was faster
		if !there[id] {
			delete(d.answered, id)
		}
	}
	return errors.Join(errs...)
}

// node drains one holder's copies.
func (d *Drainer) node(ctx context.Context, n *node, there map[copyID]bool) error {
	var errs []error
	count, oldest := 0, time.Time{}
	defer func() { d.s.metrics.observeBuffer(n, count, oldest) }()
	for after := int64(0); ; {
		page, first, err := copiesOf(ctx, n, after)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(page) == 0 {
			return errors.Join(errs...)
		}
		if count == 0 {
			oldest = first
		}
		count += len(page)
		after = page[len(page)-1].id
		byShard := map[string][]copied{}
		for _, c := range page {
			there[c.copyID] = true
			if _, ok := d.answered[c.copyID]; !ok {
				db := cellog.DatabaseName(c.datastore, c.shard)
				byShard[db] = append(byShard[db], c)
			}
		}
		for _, cs := range byShard {
			errs = append(errs, d.put(ctx, cs))
		}
		for i := range page {
			errs = append(errs, d.settle(ctx, &page[i]))
		}
	}
}

// copiesOf returns a page of a node's unnumbered copies, and when the first was
// made.
func copiesOf(ctx context.Context, n *node, after int64) (page []copied, first time.Time, err error) {
	rows, err := n.read.QueryContext(ctx, "SELECT id, datastore, shard, row_key, column_name, ref_key, body, traceparent, buffered_at "+
		"FROM cellog_buffer.buffered_cells WHERE epoch IS NULL AND id > ? ORDER BY id LIMIT ?", after, drainPage)
	if err != nil {
		return nil, first, err
	}
	size := 0
	err = each(rows, func() error {
		c := copied{copyID: copyID{node: n}}
		var row []byte
		var trace sql.NullString
		var at time.Time
		if err := rows.Scan(&c.id, &c.datastore, &c.shard, &row, &c.put.Column, &c.put.Ref, &c.put.Body, &trace, &at); err != nil {
			return err
		}
		if len(page) == 0 {
			first = at
		}
		copy(c.put.Row[:], row)
		c.put.TraceParent = trace.String
		page = append(page, c)
		if size += len(c.put.Body); size > PageBytes {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return page, first, err
}

// put puts copies of one shard, if its primary is there.
func (d *Drainer) put(ctx context.Context, cs []copied) error {
	route, err := d.s.routes.Route(cs[0].datastore, cs[0].shard)
	if errors.Is(err, storage.ErrUnavailable) {
		return nil // nobody has it open: wait
	}
	if err != nil {
		return err
	}
	primary, err := d.s.node(route)
	if err != nil {
		return err
	}
	primary.mu.Lock()
	up := primary.seen && primary.writable
	primary.mu.Unlock()
	if !up {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	puts := make([]cellog.Put, len(cs))
	for i := range cs {
		puts[i] = cs[i].put
	}
	stored, errs := d.s.Write(ctx, cs[0].datastore, cs[0].shard, puts)
	var left []error
	for i := range cs {
		switch {
		case errs[i] == nil:
			d.answered[cs[i].copyID] = stored[i]
		case errors.Is(errs[i], storage.ErrColumnLimit):
			left = append(left, d.reject(ctx, &cs[i], "column_limit", nil))
		case errors.Is(errs[i], storage.ErrUnavailable), errors.Is(errs[i], storage.ErrOutcomeUnknown):
		default:
			left = append(left, errs[i])
		}
	}
	return errors.Join(left...)
}

// settle lets a copy go whose put was answered by a cell that is final.
func (d *Drainer) settle(ctx context.Context, c *copied) error {
	stored, ok := d.answered[c.copyID]
	if !ok {
		return nil
	}
	if mark, known := d.final(c.datastore, c.shard); !known || stored.AddedID > mark {
		return nil
	}
	var err error
	if stored.Outcome == cellog.Conflict {
		err = d.reject(ctx, c, "conflict", &stored)
	} else {
		_, err = c.node.write.ExecContext(ctx, "DELETE FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ? AND epoch IS NULL", c.id, c.put.Row[:])
	}
	if err == nil {
		delete(d.answered, c.copyID)
	}
	return err
}

// reject moves a copy to rejected_cells, on its holder. Of two drainers the one
// that deletes the copy writes it there.
func (d *Drainer) reject(ctx context.Context, c *copied, reason string, winner *cellog.Stored) error {
	var epoch, id, body any
	if winner != nil {
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
	res, err := tx.ExecContext(ctx, "DELETE FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ? AND epoch IS NULL", c.id, c.put.Row[:])
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO cellog_buffer.rejected_cells (datastore, shard, row_key, column_name, ref_key, body, reason, "+
		"winner_epoch, winner_added_id, winner_body, rejected_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NOW(6))",
		c.datastore, int(c.shard), c.put.Row[:], c.put.Column, int64(c.put.Ref), c.put.Body, reason, epoch, id, body); err != nil {
		return err
	}
	return tx.Commit()
}
