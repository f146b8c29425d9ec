package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// askAgain is how long a datastore that cellog_meta does not know is taken to
// be none.
const askAgain = time.Second

// sequencer gives each row its place: it skips what was published, fills what
// the binlog lacks from entity, numbers the cells of each column, and stops a
// shard that breaks the rules. It belongs to the goroutine that reads.
//
// Invariants, per shard:
//
//  1. Items are pushed with added_id last+1, last+2, …, and with sequence
//     numbers that are dense per column.
//  2. After a stop nothing more of the shard is pushed, and no position: the
//     binlog is read again from before the stop at the next start.
type sequencer struct {
	cluster  string
	entities EntityReader
	topic    func(ctx context.Context, ds *Datastore, column string) error
	push     func(ctx context.Context, items []item, bytes int, beats []Beat, position string) error
	stop     func(shard ShardKey, err error) // tells; called once per shard
	refused  map[ShardKey]Stop               // by earlier sessions
	merged   func(datastore string) bool
	values   func(datastore string) record.Forms
	reading  reading
	progress func(f Fill, log bool) // tells how far a fill is, zero at its end
	metrics  *metrics

	shards     map[ShardKey]*shardState
	datastores map[string]*Datastore
	unknown    map[string]time.Time  // when asked last
	topics     map[topicKey]struct{} // known to be there
	frozen     bool                  // a shard stopped: push no more positions
	recheck    time.Time             // when to look at entity once more
	looks      looks

	items []item
	bytes int
}

type shardState struct {
	ds      *Datastore
	last    cellog.AddedID
	epoch   cellog.Epoch
	first   cellog.AddedID // of that epoch
	columns map[string]cellog.Sequence
	stopped bool
}

type topicKey struct {
	ds     *Datastore
	column string
}

// Stop says at which cell a shard stopped, and why.
type Stop struct {
	At  cellog.AddedID
	Err error
}

func (s *sequencer) load(shards map[ShardKey]position.Shard) {
	for k, p := range shards {
		// A shard that moved away is another cluster's: its rows are not ours.
		st := &shardState{stopped: p.Owner != s.cluster, last: p.Last, epoch: p.Epoch, first: p.First, columns: make(map[string]cellog.Sequence, len(p.Columns))}
		for c, v := range p.Columns {
			st.columns[c] = v.Sequence
		}
		s.shards[k] = st
	}
}

// halt stops a shard. Everything of it up to here stays published.
func (s *sequencer) halt(k ShardKey, st *shardState, err error) {
	if st.stopped {
		return
	}
	st.stopped = true
	s.frozen = true
	s.stop(k, err)
}

// handle takes the next transaction of the binlog.
func (s *sequencer) handle(ctx context.Context, t *Transaction) error {
	if !s.recheck.IsZero() && time.Now().After(s.recheck) {
		s.recheck = time.Time{}
		if err := s.fillAll(ctx); err != nil {
			return err
		}
	}
	if err := s.look(ctx, t); err != nil || t.Reading > 0 {
		return err
	}
	for i := range t.Changes {
		if err := s.change(ctx, &t.Changes[i]); err != nil {
			return err
		}
	}
	var beats []Beat
	for _, b := range t.Beats {
		if b.Cluster == s.cluster {
			beats = append(beats, b)
		}
	}
	position := t.Position
	if s.frozen {
		position = ""
	}
	return s.flush(ctx, beats, position)
}

// flush pushes what is gathered.
func (s *sequencer) flush(ctx context.Context, beats []Beat, position string) error {
	if len(s.items) == 0 && len(beats) == 0 && position == "" {
		return nil
	}
	err := s.push(ctx, s.items, s.bytes, beats, position)
	s.items, s.bytes = s.items[:0], 0
	return err
}

// state returns a shard's state; nil if it is stopped.
func (s *sequencer) state(ctx context.Context, k ShardKey) (*shardState, error) {
	st := s.shards[k]
	if st == nil {
		st = &shardState{columns: make(map[string]cellog.Sequence)}
		s.shards[k] = st
	}
	if st.stopped {
		return nil, nil
	}
	if st.ds != nil {
		return st, nil
	}
	ds, err := s.datastore(ctx, k.Datastore)
	if ds == nil && err == nil {
		return nil, nil // not ours: were it made later, its rows would be filled from entity
	}
	if err == nil && int(k.Shard) >= ds.Shards {
		err = fmt.Errorf("%w: datastore %s has %d shards, so there can be no shard %d", ErrShard, k.Datastore, ds.Shards, k.Shard)
	}
	if errors.Is(err, ErrShard) {
		s.halt(k, st, err)
		return nil, nil
	}
	st.ds = ds
	return st, err
}

// datastore returns nil for a database that only looks like a shard: its
// datastore was dropped, or never was one.
func (s *sequencer) datastore(ctx context.Context, name string) (*Datastore, error) {
	if ds := s.datastores[name]; ds != nil {
		return ds, nil
	}
	if time.Since(s.unknown[name]) < askAgain {
		return nil, nil
	}
	shards, partitions, ok, err := s.entities.Datastore(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("datastore %s: %w", name, err)
	}
	if !ok {
		s.unknown[name] = time.Now()
		return nil, nil
	}
	if err := errors.Join(cellog.CheckShards(shards), cellog.CheckPartitions(partitions, shards)); err != nil {
		return nil, fmt.Errorf("%w: cellog_meta.datastores, %s: %w", ErrShard, name, err)
	}
	ds := &Datastore{Name: name, Shards: shards, Partitions: partitions, Merged: s.merged(name), Values: s.values(name)}
	s.datastores[name] = ds
	return ds, nil
}

func (s *sequencer) change(ctx context.Context, c *Change) error {
	st, err := s.state(ctx, c.Shard)
	if st == nil || err != nil {
		return err
	}
	if c.Bad != nil {
		s.halt(c.Shard, st, fmt.Errorf("%w after added_id %d: %w", ErrShard, st.last, c.Bad))
		return nil
	}
	if c.Lost != nil {
		if there, err := s.there(ctx, c.Shard, st.last); err != nil {
			return err
		} else if !there {
			s.halt(c.Shard, st, fmt.Errorf("%w after added_id %d: %w", ErrShard, st.last, c.Lost))
			return nil
		}
	}
	for i := range c.Rows {
		if err := s.row(ctx, c.Shard, st, &c.Rows[i]); err != nil || st.stopped {
			return err
		}
	}
	if c.UpTo > st.last {
		return s.fill(ctx, c.Shard, st, c.UpTo)
	}
	return nil
}

// row takes a row that the binlog showed.
func (s *sequencer) row(ctx context.Context, k ShardKey, st *shardState, r *Row) error {
	if r.AddedID <= st.last {
		s.metrics.skipped.Inc()
		return nil
	}
	if r.AddedID > st.last+1 {
		if err := s.fill(ctx, k, st, r.AddedID-1); err != nil || st.stopped {
			return err
		}
		if r.AddedID <= st.last { // entity had it too
			s.metrics.skipped.Inc()
			return nil
		}
	}
	return s.next(ctx, k, st, r)
}

// next takes the shard's next row.
func (s *sequencer) next(ctx context.Context, k ShardKey, st *shardState, r *Row) error {
	if r.AddedID != st.last+1 {
		s.halt(k, st, fmt.Errorf("%w: added_id %d follows %d", ErrShard, r.AddedID, st.last))
		return nil
	}
	// A promotion names the first added_id of its epoch before it is there:
	// what its master held then has older epochs and is still to be published.
	if old := r.AddedID < st.first; old != (r.Epoch < st.epoch) {
		s.halt(k, st, fmt.Errorf("%w: added_id %d has epoch %d, but epoch %d begins at added_id %d", ErrShard, r.AddedID, r.Epoch, st.epoch, st.first))
		return nil
	}
	if stop, ok := s.refused[k]; ok && r.AddedID >= stop.At {
		s.halt(k, st, stop.Err)
		return nil
	}
	seq, known := st.columns[r.Column]
	if !known || seq == 0 {
		if err := cellog.CheckColumn(r.Column); err != nil {
			s.halt(k, st, fmt.Errorf("%w: added_id %d: %w", ErrShard, r.AddedID, err))
			return nil
		}
	}
	tk := topicKey{st.ds, r.Column}
	if _, ok := s.topics[tk]; !ok {
		if err := s.topic(ctx, st.ds, r.Column); err != nil {
			if !errors.Is(err, ErrShard) {
				return err
			}
			s.halt(k, st, fmt.Errorf("added_id %d: %w", r.AddedID, err))
			return nil
		}
		s.topics[tk] = struct{}{}
	}
	cost := 3*len(r.Body) + 1024
	s.items = append(s.items, item{
		row: *r, shard: k, ds: st.ds, seq: int64(seq) + 1, first: r.Epoch > st.epoch, cost: cost,
	})
	s.bytes += cost
	if r.Epoch > st.epoch {
		st.epoch, st.first = r.Epoch, r.AddedID
	}
	st.last, st.columns[r.Column] = r.AddedID, seq+1
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
