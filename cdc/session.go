package cdc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/schemas/position"
)

// closeTime is how long a session that ends may take to commit what is in
// hand, and to close.
const closeTime = 5 * time.Second

// headsTimeout bounds how long a node may take to say where its shards stand,
// before another one is looked at.
const headsTimeout = 15 * time.Second

// session is one run of the protocol of the design's section 6:
//
//  1. Read the positions; a cluster that is not open is waited for, and so is
//     another tailer whose heartbeats flow.
//  2. Open: fences every older tailer. Read the positions again: from here on
//     nobody else writes them.
//  3. Put this tailer's mark into the positions, so that others stand by.
//  4. Fetch the records that the positions name: is Kafka what it was?
//  5. Choose a node that holds, at each shard's last place, the cell that was
//     published.
//  6. Publish from its entity tables what merged topics lack that were switched
//     on since, and stream.
func (t *Tailer) session(ctx context.Context) error {
	t.set(func(s *Status) { s.State = "starting" })
	if err := t.standBy(ctx); err != nil {
		return err
	}
	failpoint.Hit("tailer/before-open")
	sess, pos, err := t.cfg.Publisher.Open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		sess.Close(ctx)
	}()
	failpoint.Hit("tailer/opened")
	if err := opened(pos.Cluster); err != nil {
		return err
	}
	t.clearStops()
	t.keepPublished(pos.Shards)
	pos.Cluster.TailerMark = t.cfg.Mark
	if err := sess.Commit(ctx, t.signOfLife(pos.Cluster)); err != nil {
		return err
	}
	failpoint.Hit("tailer/marked")
	if err := t.hold(ctx, sess, pos.Cluster); err != nil {
		return err
	}
	return t.run(ctx, sess, pos)
}

// signOfLife is a commit that only shows other tailers that this one lives.
func (t *Tailer) signOfLife(c *position.Cluster) Commit {
	return Commit{Cluster: *c, Beats: []Beat{{WrittenAt: time.Now()}}, Tailer: t.tell()}
}

func opened(c *position.Cluster) error {
	switch {
	case c == nil:
		return fmt.Errorf("%w: its positions topic has no `open`: make a datastore first (`cellog datastore create`)", ErrNotOpened)
	case c.State != position.Open:
		return fmt.Errorf("%w: it is %s in term %d: a promotion opens a node, or another one takes the claim over (`cellog cluster promote`)", ErrNotOpened, c.State, c.Term)
	}
	return nil
}

// standBy returns when the cluster is open and no other tailer's heartbeats
// flow. While a claim stands it only reads: a producer would fence the promoter.
//
// Several tailers may look at the same instants: what each does is therefore
// spread by chance, and a mark is judged dead only if no other has taken its
// place meanwhile, or they would throw each other out in turn.
func (t *Tailer) standBy(ctx context.Context) error {
	silent := ""
	for {
		pos, err := t.cfg.Publisher.Positions(ctx)
		if err != nil {
			return err
		}
		if err := opened(pos.Cluster); err != nil {
			t.metrics.standingBy.Set(0)
			t.set(func(s *Status) { s.State, s.Err = "waiting", err })
			if err := sleep(ctx, t.cfg.BeatEvery); err != nil {
				return err
			}
			continue
		}
		mark := pos.Cluster.TailerMark
		if mark == "" || mark == t.cfg.Mark || mark == silent {
			break
		}
		watch, cancel := context.WithTimeout(ctx, t.cfg.StandBy+rand.N(t.cfg.BeatEvery))
		err = t.cfg.Publisher.Watch(watch, mark)
		late := watch.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && late {
			silent = mark // its heartbeats have ended
			continue
		}
		if err != nil {
			return err
		}
		t.standsBy()
		t.metrics.standingBy.Set(1)
	}
	t.metrics.standingBy.Set(0)
	t.set(func(s *Status) { s.State = "starting" })
	return nil
}

// run chooses a node and streams from it.
func (t *Tailer) run(ctx context.Context, sess Session, pos Positions) error {
	refused, careful := t.sessionState()
	type choice struct {
		node Node
		seq  *sequencer
		err  error
	}
	chosen := make(chan choice, 1)
	look, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		node, seq, err := t.choose(look, sess, pos, refused)
		chosen <- choice{node, seq, err}
	}()
	tick := time.NewTicker(t.cfg.BeatEvery)
	defer tick.Stop()
	for {
		select {
		case c := <-chosen:
			if c.err != nil {
				return c.err
			}
			if err := t.catchUp(ctx, sess, &c.seq.reading, c.seq, pos); err != nil {
				return err
			}
			return t.stream(ctx, sess, c.node, c.seq, pos, careful)
		case <-tick.C:
			// Looking at many shards takes a while: meanwhile, stay alive.
			if err := sess.Commit(ctx, t.signOfLife(pos.Cluster)); err != nil {
				cancel()
				<-chosen
				return err
			}
		}
	}
}

// choose returns the first node that can be a source, and its sequencer.
func (t *Tailer) choose(ctx context.Context, sess Session, pos Positions, refused map[ShardKey]Stop) (Node, *sequencer, error) {
	nodes, err := t.nodes(ctx, pos.Cluster)
	if err != nil {
		return Node{}, nil, err
	}
	var why []error
	for _, node := range t.silentLast(nodes) {
		seq := t.newSequencer(node, sess, refused)
		seq.load(pos.Shards)
		stops, err := t.check(ctx, sess, node, seq, pos)
		if ctx.Err() != nil {
			return Node{}, nil, ctx.Err()
		}
		if err != nil {
			why = append(why, fmt.Errorf("node %s: %w", node.Name, err))
			continue
		}
		for k, err := range stops {
			seq.halt(k, seq.shards[k], err)
		}
		return node, seq, nil
	}
	return Node{}, nil, fmt.Errorf("%w: %w", ErrNoNode, errors.Join(why...))
}

// nodes leaves the master out while there are minions, since a semi-sync
// master shows its tailer rows that no other machine has. One that was opened
// alone has none that are sure to follow. The node that was opened is the master,
// also while it takes no writes yet.
func (t *Tailer) nodes(ctx context.Context, c *position.Cluster) ([]Node, error) {
	all, err := t.cfg.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoNode, err)
	}
	var minions []Node
	for _, n := range all {
		if !n.Master && n.Name != c.Node {
			minions = append(minions, n)
		}
	}
	if len(minions) == 0 || t.cfg.TailMaster || c.Alone {
		return all, nil
	}
	return minions, nil
}

func (t *Tailer) newSequencer(node Node, sess Session, refused map[ShardKey]Stop) *sequencer {
	return &sequencer{
		cluster: t.cfg.Cluster, entities: node.Entities, topic: sess.Topic,
		stop: t.stopShard, refused: refused, merged: t.cfg.Merged, values: t.cfg.Values,
		reading: t.newReading(node), progress: t.filled(node), metrics: t.metrics,
		shards: make(map[ShardKey]*shardState), datastores: make(map[string]*Datastore),
		topics: make(map[topicKey]struct{}), unknown: make(map[string]time.Time),
		looks: looks{every: t.cfg.LookEvery},
	}
}

// newReading leaves the lag of a master, and of a node that cannot tell, alone.
func (t *Tailer) newReading(node Node) reading {
	r := reading{entities: node.Entities, shards: t.cfg.FillShards, wait: t.cfg.FillWait}
	if node.Lag != nil && t.cfg.FillMaxLag > 0 {
		r.yield = &yielder{lag: node.Lag, most: t.cfg.FillMaxLag, logger: t.cfg.Logger, cluster: t.cfg.Cluster, node: node.Name, metrics: t.metrics}
	}
	return r
}

// filled tells how far a fill is.
func (t *Tailer) filled(node Node) func(Fill, bool) {
	return func(f Fill, log bool) {
		t.shows() // reading the tables goes on, also while it pauses for a node that lags
		t.set(func(s *Status) { s.Fill = f })
		if log {
			t.cfg.Logger.Info("reading from the entity tables", "cluster", t.cfg.Cluster, "node", node.Name, "cells", f.Cells, "of", f.Of,
				"percent", 100*f.Cells/max(f.Of, 1), "cells_per_second", int64(f.PerSecond))
		}
	}
}

// noShard is why a node that shows nothing of a shard is no source. A server shows
// nobody a database in which he has no right, so it may also be there.
func (t *Tailer) noShard(node Node, what string) error {
	help := "see `cellog doctor`"
	if !node.Master {
		help += fmt.Sprintf(", or run `cellog cluster rejoin %s %s`, which gives the rights, and rebuilds the node if it must", t.cfg.Cluster, node.Name)
	}
	return fmt.Errorf("%w: it has %s that the tailer's account may see: it is being rebuilt, or is empty, or the account lacks its rights there: %s", ErrNodeBehind, what, help)
}

// check fetches what the positions name and compares it with the node. It
// returns the shards that must stop, or why the node cannot be a source.
func (t *Tailer) check(ctx context.Context, sess Session, node Node, seq *sequencer, pos Positions) (map[ShardKey]error, error) {
	heads := make(map[ShardKey]Head)
	hctx, cancel := context.WithTimeout(ctx, headsTimeout) // a frozen server answers never
	err := node.Entities.Heads(hctx, func(h Head) error { heads[h.Shard] = h; return nil })
	cancel()
	if err != nil {
		return nil, fmt.Errorf("read the heads of the shards: %w", err)
	}
	if len(heads) == 0 && len(pos.Shards) > 0 {
		return nil, t.noShard(node, "no shard at all")
	}
	verify := make(map[ShardKey]VerifyShard, len(pos.Shards))
	stops := make(map[ShardKey]error)
	for k, p := range pos.Shards {
		if p.Owner != t.cfg.Cluster {
			continue
		}
		ds, err := seq.datastore(ctx, k.Datastore)
		switch {
		case errors.Is(err, ErrShard):
			stops[k] = err
			continue
		case err != nil:
			return nil, err
		case ds == nil:
			continue // dropped
		}
		h, ok := heads[k]
		switch {
		case !ok:
			return nil, t.noShard(node, "no shard "+k.String())
		case h.Epoch < p.Epoch:
			return nil, fmt.Errorf("%w: its shard %s is of epoch %d, published is epoch %d", ErrNodeBehind, k, h.Epoch, p.Epoch)
		}
		if p.Last > 0 {
			verify[k] = VerifyShard{Datastore: ds, Position: p}
		}
	}
	verified, err := sess.Verify(ctx, verify)
	if err != nil {
		return nil, err
	}
	at := make(map[ShardKey]cellog.AddedID, len(verified))
	for k, v := range verified {
		switch {
		case v.Err != nil:
			stops[k] = fmt.Errorf("%w: %w", ErrShard, v.Err)
		case v.Last.AddedID > 0: // else expired in Kafka: nothing to compare
			at[k] = v.Last.AddedID
		}
	}
	cells, err := node.Entities.CellsAt(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("read the last published cells: %w", err)
	}
	for k, id := range at {
		last := verified[k].Last
		switch there, ok := cells[k]; {
		case !ok:
			return nil, fmt.Errorf("%w: %s, added_id %d", ErrNodeBehind, k, id)
		case there.Epoch != last.Epoch || there.Key != last.Key:
			return nil, fmt.Errorf("%w: %s, added_id %d: published (epoch %d, %s), there (epoch %d, %s)",
				ErrNodeDiffers, k, id, last.Epoch, last.Key, there.Epoch, there.Key)
		}
	}
	return stops, nil
}

// stream runs the pipeline until the source or Kafka fails, or ctx ends; then
// what is in hand is committed first.
func (t *Tailer) stream(ctx context.Context, sess Session, node Node, seq *sequencer, pos Positions, careful map[ShardKey]cellog.AddedID) error {
	cluster := *pos.Cluster
	q := newQueue(t.cfg.MaxQueueBytes)
	com := &committer{
		name: t.cfg.Cluster, sending: "tailer/before-send-" + t.cfg.Cluster, session: sess, queue: q,
		maxCells: t.cfg.MaxTransactionCells, maxBytes: t.cfg.MaxTransactionBytes,
		metrics: t.metrics, stop: t.stopShard, careful: careful, beatDue: t.cfg.BeatEvery,
		onCommit: t.committed, tell: t.tell, cluster: cluster, frozen: seq.frozen,
		shards: make(map[ShardKey]*published), touched: make(map[ShardKey]*published),
	}
	for k, p := range pos.Shards {
		com.shards[k] = &published{Shard: p}
	}
	seq.push = func(ctx context.Context, items []item, bytes int, beats []Beat, position string) error {
		t.shows()
		return q.push(ctx, items, bytes, beats, position)
	}

	t.set(func(s *Status) { s.State, s.Node, s.Err = "streaming", node.Name, nil })

	// Reading ends with ctx; committing goes on until the queue is empty, or
	// for closeTime.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTime, cancel) })()
	g, hard := errgroup.WithContext(hard)
	read, stopRead := context.WithCancel(ctx)
	defer stopRead()
	defer context.AfterFunc(hard, stopRead)()

	var pausing atomic.Bool
	// While a transaction is being committed the next one's cells are transcoded;
	// the queue bounds their memory.
	out := make(chan *chunk, 2*t.cfg.Transcoders+2+t.cfg.MaxTransactionCells/chunkItems)
	g.Go(func() error {
		if t.cfg.Paused != nil && t.awaitPause(read, true) {
			pausing.Store(true)
			stopRead()
		}
		return nil
	})
	g.Go(func() error {
		defer q.close()
		err := t.read(read, node, seq, cluster.GTID)
		if ctx.Err() != nil || pausing.Load() {
			return nil // a stop: the rest of the pipeline drains
		}
		return err
	})
	g.Go(func() error { return transcode(hard, q, t.cfg.Transcoders, sess.Encode, out) })
	g.Go(func() error { return com.run(hard, out) })
	if t.cfg.Beat != nil {
		g.Go(func() error { t.beat(read); return nil })
		g.Go(func() error { return t.watch(read, q, node.Name) })
	}
	err := g.Wait()
	t.keepCareful(com.careful)
	if err == nil && ctx.Err() != nil {
		// A clean stop: nobody needs to stand by for this tailer.
		com.cluster.TailerMark = ""
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		com.dirty = true
		err = com.commit(bye)
	} else if err == nil {
		err = ErrPaused // what was in hand is committed; the next session holds
	}
	return err
}

// read feeds the sequencer: from the binlog at the hint, or, without a hint or
// when the server does not reach back to it, from entity and then from the
// binlog's end. A promotion leaves no hint: a server that was promoted may take
// one that it never came by, and would then not show what it committed before.
func (t *Tailer) read(ctx context.Context, node Node, seq *sequencer, hint string) error {
	defer t.reading.Store(0)
	handle := func(tx *Transaction) error {
		t.shows()
		t.reading.Store(tx.Reading)
		return seq.handle(ctx, tx)
	}
	if hint != "" {
		err := node.Source.Run(ctx, hint, handle)
		if !errors.Is(err, ErrPositionLost) {
			return err
		}
		t.cfg.Logger.Warn("binlog position lost: continuing from the entity tables", "cluster", t.cfg.Cluster, "node", node.Name, "error", err)
	}
	// What is committed before now is in entity, but for transactions whose
	// binlog entry is ahead of the rows: one more look finds those.
	now, err := node.Source.Now(ctx)
	if err != nil {
		return err
	}
	if err := seq.fillAll(ctx); err != nil {
		return err
	}
	seq.recheck = time.Now().Add(2 * time.Second)
	if !seq.frozen {
		// So that a restart meets again what stops a shard from here on.
		if err := seq.flush(ctx, nil, now); err != nil {
			return err
		}
	}
	return node.Source.Run(ctx, now, handle)
}

// beat writes heartbeats on the master until ctx ends.
func (t *Tailer) beat(ctx context.Context) {
	tick := time.NewTicker(t.cfg.BeatEvery)
	defer tick.Stop()
	failing := false
	for {
		now := time.Now()
		limited, cancel := context.WithTimeout(ctx, max(t.cfg.BeatEvery, time.Second))
		err := t.cfg.Beat(limited, t.cfg.Cluster, now.UnixMicro(), now.UTC())
		cancel()
		if err != nil && ctx.Err() == nil {
			t.metrics.beatFailures.Inc()
			if !failing {
				t.cfg.Logger.Warn("heartbeat not written", "cluster", t.cfg.Cluster, "error", err)
			}
		}
		if failing = err != nil; !failing {
			t.mu.Lock()
			t.unseen++
			t.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *Tailer) clearStops() {
	t.mu.Lock()
	clear(t.stops)
	t.mu.Unlock()
	t.metrics.stopped.Set(0)
}

func (t *Tailer) keepCareful(careful map[ShardKey]cellog.AddedID) {
	t.mu.Lock()
	t.careful = careful
	t.mu.Unlock()
}
