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
// each transaction has the position that it reached.
func (t *Tailer) catchUp(ctx context.Context, sess Session, node Node, seq *sequencer, pos Positions) error {
	keys := slices.SortedFunc(maps.Keys(pos.Shards), func(a, b ShardKey) int {
		return cmp.Or(cmp.Compare(a.Datastore, b.Datastore), cmp.Compare(a.Shard, b.Shard))
	})
	for _, k := range keys {
		p := pos.Shards[k]
		if st := seq.shards[k]; st.stopped || p.Last == 0 || p.Columns[position.Merged].AddedID >= p.Last {
			continue
		}
		ds, err := seq.datastore(ctx, k.Datastore)
		if err != nil {
			return err
		}
		if ds == nil || !ds.Merged {
			continue
		}
		t.cfg.Logger.Info("the merged topic lacks cells: publishing them from the entity table", "shard", k.String(),
			"have", p.Columns[position.Merged].AddedID, "want", p.Last)
		t.set(func(s *Status) { s.State = "catching-up" })
		p, err = t.catchUpShard(ctx, sess, node, ds, k, p, pos.Cluster)
		if errors.Is(err, ErrShard) {
			seq.halt(k, seq.shards[k], err)
			continue
		}
		if err != nil {
			return fmt.Errorf("merged topic of shard %s: %w", k, err)
		}
		pos.Shards[k] = p
		seq.shards[k].columns[position.Merged] = p.Columns[position.Merged].Sequence
	}
	return nil
}

// catchUpShard reads the shard from its first cell on, since only so the cells
// of its columns can be counted. Each page is a transaction; while there is
// nothing to send, a sign of life tells other tailers to stand by.
func (t *Tailer) catchUpShard(ctx context.Context, sess Session, node Node, ds *Datastore, k ShardKey, p position.Shard, cluster *position.Cluster) (position.Shard, error) {
	for column := range p.Columns {
		if column != position.Merged { // makes the merged topic, too
			if err := sess.Topic(ctx, ds, column); err != nil {
				return p, err
			}
			break
		}
	}
	p.Columns = maps.Clone(p.Columns)
	have := p.Columns[position.Merged].AddedID
	counts := make(map[string]cellog.Sequence)
	committed := time.Now()
	for last := cellog.AddedID(0); last < p.Last; {
		cells, err := node.Entities.ReadEntity(ctx, k.Datastore, k.Shard, last, fillPage)
		if err != nil {
			return p, err
		}
		if len(cells) == 0 || cells[0].AddedID != last+1 {
			return p, fmt.Errorf("%w: %s.entity of node %s has no added_id %d, which was published: compare the table with the cluster's other nodes", ErrShard, k, node.Name, last+1)
		}
		var newest Message
		for i := range cells {
			c := &cells[i]
			if c.AddedID != last+1 || c.AddedID > p.Last {
				break
			}
			last = c.AddedID
			counts[c.Column]++
			if c.AddedID <= have {
				continue
			}
			c.Sequence = counts[c.Column]
			var form record.Form
			if c.Body, form, err = record.AppendValue(nil, c.Body, ds.Values.Of(c.Column)); err != nil {
				return p, fmt.Errorf("%w: added_id %d: %w", ErrShard, c.AddedID, err)
			}
			_, newest = sess.Encode(ds, c, form)
			if err := sess.Send(ctx, newest); err != nil {
				return p, err
			}
		}
		if newest == nil && time.Since(committed) < t.cfg.BeatEvery {
			continue
		}
		commit := Commit{Cluster: *cluster, Beats: []Beat{{WrittenAt: time.Now()}}}
		if newest != nil {
			if err := sess.Flush(ctx); err != nil {
				return p, err
			}
			p.Columns[position.Merged] = position.Column{Sequence: cellog.Sequence(last), AddedID: last, Offset: newest.Offset()}
			at := p
			at.Columns = maps.Clone(p.Columns)
			commit.Shards = map[ShardKey]position.Shard{k: at}
		}
		if err := sess.Commit(ctx, commit); err != nil {
			return p, err
		}
		committed = time.Now()
	}
	return p, nil
}
