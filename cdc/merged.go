package cdc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// catchUp publishes from entity what merged topics lack, because they were
// switched on when there were cells already, or were off for a while: so that a
// merged topic, too, holds each shard's log from its first cell on, in its
// order. It comes before anything new is published, and costs once what a
// replay of the shards costs. It goes on where an earlier one was cut off, for
// each transaction has the positions that it reached.
func (t *Tailer) catchUp(ctx context.Context, sess Session, r *reading, seq *sequencer, pos Positions) error {
	keys := slices.SortedFunc(maps.Keys(pos.Shards), func(a, b ShardKey) int {
		return cmp.Or(cmp.Compare(a.Datastore, b.Datastore), cmp.Compare(a.Shard, b.Shard))
	})
	c := &catchUp{t: t, sess: sess, cluster: *pos.Cluster, lacking: make(map[ShardKey]*lacking), touched: make(map[ShardKey]struct{}), committed: time.Now()}
	var jobs []*job
	for _, k := range keys {
		p := pos.Shards[k]
		have := p.Columns[position.Merged].AddedID
		if st := seq.shards[k]; st.stopped || p.Last == 0 || have >= p.Last {
			continue
		}
		ds, err := seq.datastore(ctx, k.Datastore)
		if err != nil {
			return err
		}
		if ds == nil || !ds.Merged {
			continue
		}
		if err := c.topic(ctx, ds, p); errors.Is(err, ErrShard) {
			seq.halt(k, seq.shards[k], err)
			continue
		} else if err != nil {
			return fmt.Errorf("merged topic of shard %s: %w", k, err)
		}
		t.cfg.Logger.Info("the merged topic lacks cells: publishing them from the entity table", "shard", k.String(), "have", have, "want", p.Last)
		p.Columns = maps.Clone(p.Columns)
		c.lacking[k] = &lacking{ds: ds, have: have, at: p, counts: make(map[string]cellog.Sequence)}
		jobs = append(jobs, &job{shard: k, upTo: p.Last, prepare: func(r *Row) (err error) {
			if r.AddedID <= have {
				return nil
			}
			if r.Body, r.form, err = record.AppendValue(nil, r.Body, ds.Values.Of(r.Column)); err != nil {
				return fmt.Errorf("%w: added_id %d: the stored body cannot be read: %w", ErrShard, r.AddedID, err)
			}
			return nil
		}})
	}
	if len(jobs) == 0 {
		return nil
	}
	t.set(func(s *Status) { s.State = "catching-up" })
	err := r.pages(ctx, jobs, t.cfg.BeatEvery, func() error { return c.commit(ctx) }, func(p *page) error {
		if err := c.page(ctx, p); err != nil {
			return fmt.Errorf("merged topic of shard %s: %w", p.job.shard, err)
		}
		if p.err != nil {
			seq.halt(p.job.shard, seq.shards[p.job.shard], p.err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.commit(ctx); err != nil {
		return err
	}
	for k, l := range c.lacking {
		pos.Shards[k] = l.at
		seq.shards[k].columns[position.Merged] = l.at.Columns[position.Merged].Sequence
	}
	return nil
}

// catchUp is a catch-up under way.
type catchUp struct {
	t       *Tailer
	sess    Session
	cluster position.Cluster
	lacking map[ShardKey]*lacking

	// The open transaction.
	touched      map[ShardKey]struct{}
	cells, bytes int
	committed    time.Time
}

// lacking is a shard of which the merged topic lacks cells. Its log is read from
// the first cell on, since only so the cells of its columns can be counted.
type lacking struct {
	ds     *Datastore
	have   cellog.AddedID
	at     position.Shard
	counts map[string]cellog.Sequence
	newest Message // of the open transaction
}

// topic makes the merged topic, as any column's does.
func (c *catchUp) topic(ctx context.Context, ds *Datastore, p position.Shard) error {
	for column := range p.Columns {
		if column != position.Merged {
			return c.sess.Topic(ctx, ds, column)
		}
	}
	return nil
}

// page sends what the topic lacks, and commits as often as a stream that is
// behind does.
func (c *catchUp) page(ctx context.Context, p *page) error {
	k := p.job.shard
	l := c.lacking[k]
	for i := range p.rows {
		r := &p.rows[i]
		l.counts[r.Column]++
		if r.AddedID <= l.have {
			continue
		}
		_, l.newest = c.sess.Encode(l.ds, &cellog.Cell{Key: r.Key(), Datastore: k.Datastore, Shard: k.Shard, AddedID: r.AddedID, Epoch: r.Epoch,
			Sequence: l.counts[r.Column], CreatedAt: r.CreatedAt, Body: r.Body, TraceParent: r.TraceParent}, r.form)
		if err := c.sess.Send(ctx, l.newest); err != nil {
			return err
		}
		l.at.Columns[position.Merged] = position.Column{Sequence: cellog.Sequence(r.AddedID), AddedID: r.AddedID}
		c.touched[k] = struct{}{}
		c.cells, c.bytes = c.cells+1, c.bytes+l.newest.Size()
	}
	if c.cells < c.t.cfg.MaxTransactionCells && c.bytes < c.t.cfg.MaxTransactionBytes && time.Since(c.committed) < c.t.cfg.BeatEvery {
		return nil
	}
	return c.commit(ctx)
}

// commit commits what was sent. Without anything it is a sign of life, so that
// other tailers stand by.
func (c *catchUp) commit(ctx context.Context) error {
	if c.cells > 0 {
		if err := c.sess.Flush(ctx); err != nil {
			return err
		}
	}
	commit := c.t.signOfLife(&c.cluster)
	commit.Shards = make(map[ShardKey]position.Shard, len(c.touched))
	for k := range c.touched {
		l := c.lacking[k]
		col := l.at.Columns[position.Merged]
		col.Offset = l.newest.Offset()
		l.at.Columns[position.Merged] = col
		at := l.at
		at.Columns = maps.Clone(at.Columns)
		commit.Shards[k] = at
	}
	if err := c.sess.Commit(ctx, commit); err != nil {
		return err
	}
	clear(c.touched)
	c.cells, c.bytes, c.committed = 0, 0, time.Now()
	return nil
}
