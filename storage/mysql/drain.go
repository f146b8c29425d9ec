package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
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

// Drainer deletes copies that are not needed any more. Numbered ones of their
// shard's present epoch go when their added_ids are final; those of an older
// epoch become unnumbered ones. An unnumbered one is brought to its shard by the
// ordinary put, and goes when that was answered by a cell that is final. A copy
// that lost to another body, or is refused for good, goes to rejected_cells with
// the reason and the winner. Everything it does may be done twice, or by two
// drainers at once, without harm.
//
// While a primary is away, or Kafka, no copy's body is read: there may be
// millions.
type Drainer struct {
	s *Store
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
	epoch     cellog.Epoch  // of the primary that gave it
}

// NewDrainer returns a Drainer of a store, whose Marks say what is final.
func NewDrainer(s *Store) *Drainer {
	return &Drainer{s: s, answered: map[copyID]copied{}}
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
	type found struct {
		placement
		oldest sql.NullInt32 // epoch of its numbered copies; NULL: these have no number
	}
	var all []found
	rows, err := n.read.QueryContext(ctx, "SELECT cluster, datastore, shard, MIN(epoch) FROM cellog_buffer.numbered_copies GROUP BY cluster, datastore, shard "+
		"UNION ALL SELECT DISTINCT cluster, datastore, shard, NULL FROM cellog_buffer.buffered_cells")
	if err == nil {
		err = each(rows, func() error {
			var f found
			err := rows.Scan(&f.cluster, &f.datastore, &f.shard, &f.oldest)
			all = append(all, f)
			return err
		})
	}
	if err != nil {
		return err
	}
	d.s.metrics.observeBuffer(ctx, n, len(all) > 0)
	var errs []error
	for _, f := range all {
		mark, known := d.s.cfg.Marks.Mark(f.datastore, f.shard)
		if f.oldest.Valid && known && mark.Last > 0 {
			errs = append(errs, d.forget(ctx, n, f.placement, mark))
		}
		if !f.oldest.Valid || cellog.Epoch(f.oldest.Int32) < mark.Epoch {
			errs = append(errs, d.placement(ctx, n, f.placement, mark.Epoch, f.oldest.Valid))
		}
	}
	return errors.Join(errs...)
}

// forget deletes a holder's numbered copies of a shard that are final. Those of
// an older epoch may be of a branch that is dead: their numbers say nothing.
func (d *Drainer) forget(ctx context.Context, n *node, p placement, m storage.Mark) error {
	for {
		// Committed reads take no locks between the rows, where others insert.
		res, err := n.write.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; DELETE FROM cellog_buffer.numbered_copies "+
			"WHERE cluster = ? AND datastore = ? AND shard = ? AND epoch = ? AND last_id <= ? AND first_id >= ? ORDER BY last_id, tag LIMIT "+strconv.Itoa(drainIDs),
			p.cluster, p.datastore, int(p.shard), int(m.Epoch), int64(m.Last), int64(m.First))
		if err != nil {
			return err
		}
		gone, err := res.RowsAffected()
		if err != nil || gone < drainIDs {
			return err
		}
	}
}

// placement puts a holder's copies of one shard that have no number, and with
// older those of an older epoch than the given one, if the shard's primary is
// there.
func (d *Drainer) placement(ctx context.Context, n *node, p placement, epoch cellog.Epoch, older bool) error {
	route, err := d.s.routes.Route(p.datastore, p.shard)
	if errors.Is(err, storage.ErrUnavailable) {
		return nil // nobody has it open: wait
	}
	if err != nil {
		return err
	}
	primary, err := d.s.node(route)
	if err != nil || !primary.isWritable() || route.Epoch < epoch {
		return err // a deposed one is no primary
	}
	if older {
		if err := d.unnumber(ctx, n, p, epoch); err != nil {
			return err
		}
	}
	for after := int64(0); ; {
		var ids []int64
		rows, err := n.read.QueryContext(ctx, "SELECT id FROM cellog_buffer.buffered_cells WHERE cluster = ? AND datastore = ? AND shard = ? AND id > ? ORDER BY id LIMIT ?",
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

// unnumber makes a holder's numbered copies of a shard that are of an older epoch
// than the given one unnumbered ones, in the order of the shard's log, a run at a
// time. Two drainers wait for each other at the row's lock.
func (d *Drainer) unnumber(ctx context.Context, n *node, p placement, epoch cellog.Epoch) error {
	for more := true; more; {
		err := inTx(ctx, n.write, func(tx *sql.Tx) error {
			r := CopyRef{}
			var packed []byte
			err := tx.QueryRowContext(ctx, "SELECT epoch, last_id, tag, first_id, cells FROM cellog_buffer.numbered_copies WHERE cluster = ? AND datastore = ? AND shard = ? AND epoch < ? "+
				"ORDER BY epoch, last_id, tag LIMIT 1 FOR UPDATE", p.cluster, p.datastore, int(p.shard), int(epoch)).Scan(&r.Epoch, &r.LastID, &r.tag, &r.FirstID, &packed)
			if errors.Is(err, sql.ErrNoRows) {
				more = false
				return nil
			}
			if err != nil {
				return err
			}
			cells, err := r.parse(packed, p.shard)
			if err != nil {
				return err
			}
			puts := make([]cellog.Put, len(cells))
			for i, c := range cells {
				puts[i] = cellog.Put{Key: c.Key, Body: c.Body, TraceParent: c.TraceParent}
			}
			if _, err := insertCopies(ctx, tx, p.cluster, p.datastore, p.shard, puts); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "DELETE FROM cellog_buffer.numbered_copies WHERE cluster = ? AND datastore = ? AND shard = ? AND epoch = ? AND last_id = ? AND tag = ?",
				p.cluster, p.datastore, int(p.shard), int(r.Epoch), int64(r.LastID), r.tag)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// copies reads copies of one shard by their ids, in order, up to PageBytes.
func (d *Drainer) copies(ctx context.Context, n *node, p placement, ids []int64) (page []copied, err error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	rows, err := n.read.QueryContext(ctx, "SELECT id, row_key, column_name, ref_key, body, traceparent FROM cellog_buffer.buffered_cells WHERE id IN (?"+
		strings.Repeat(",?", len(ids)-1)+") ORDER BY id", args...)
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
	stored, errs, epoch := d.s.put(ctx, cs[0].datastore, cs[0].shard, puts)
	var left []error
	for i, c := range cs {
		switch {
		case errs[i] == nil:
			c.stored, c.epoch, c.put.Body = stored[i], epoch, nil
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
	mark, known := d.s.cfg.Marks.Mark(c.datastore, c.shard)
	if known && c.epoch < mark.Epoch {
		delete(d.answered, c.copyID) // that primary was deposed: put it again
		return nil
	}
	if (!known || c.stored.AddedID > mark.Last) && !failpoint.Hit("storage/settle-unfinal") {
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

const deleteCopy = "DELETE FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ?"

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
	err = tx.QueryRowContext(ctx, "SELECT 1 FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ? FOR UPDATE", c.id, c.put.Row[:]).Scan(&one)
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
