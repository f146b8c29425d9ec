package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
)

// lookEvery is how often the positions topics' ends are looked up: four times
// within storage.LookFor.
const lookEvery = 500 * time.Millisecond

// finalRetry is the wait before a positions topic that cannot be read is tried
// again.
const finalRetry = 500 * time.Millisecond

// final follows the positions topics of all clusters, so that a process knows
// what is final, and which nodes are open, without asking. Positions are read
// committed: what stands in an open transaction is not final.
type final struct {
	cfg    kafka.Config
	topics map[string]string // to their clusters
	log    *slog.Logger

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.RWMutex // guards what follows
	clusters map[string]position.Cluster
	marks    map[string]map[cellog.ShardID]place
	known    map[string]bool      // by topic: read to its end at least once
	changed  chan struct{}        // closed when a mark moves
	looked   map[string]time.Time // by cluster: when its topic was seen to hold no more than is known here
	// firstLook is closed when all were looked at once; nil then.
	firstLook chan struct{}
}

// place is how far a shard is final, and which cluster owns it.
type place struct {
	storage.Mark
	owner string
}

func newFinal(cfg *config.Config, env Env) *final {
	f := &final{cfg: kafkaConfig(cfg, env, "cellog-worker"), log: env.log(), topics: map[string]string{}, clusters: map[string]position.Cluster{}, marks: map[string]map[cellog.ShardID]place{}, known: map[string]bool{}, changed: make(chan struct{}), looked: map[string]time.Time{}, firstLook: make(chan struct{})}
	for _, c := range cfg.Clusters {
		f.topics[cellog.PositionsTopicName(cfg.Kafka.Prefix, c.Name)] = c.Name
	}
	return f
}

func (f *final) start() {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for t := range f.topics {
		f.wg.Go(func() { f.follow(ctx, t) })
	}
}

func (f *final) stop() {
	if f.cancel != nil {
		f.cancel()
		f.wg.Wait()
	}
}

// Mark returns up to where a shard is final. Nothing is known before all
// topics were read once: a shard may have been another cluster's before.
func (f *final) Mark(datastore string, shard cellog.ShardID) (storage.Mark, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if len(f.known) < len(f.topics) {
		return storage.Mark{}, false
	}
	return f.marks[datastore][shard].Mark, true
}

// owner returns the cluster that owns a shard; empty where no topic says so.
func (f *final) owner(datastore string, shard cellog.ShardID) string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.marks[datastore][shard].owner
}

// Changed returns a channel that is closed when a mark moves.
func (f *final) Changed() <-chan struct{} {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.changed
}

// upTo is Mark for those who want the last final added_id alone.
func (f *final) upTo(datastore string, shard cellog.ShardID) (cellog.AddedID, bool) {
	m, ok := f.Mark(datastore, shard)
	return m.Last, ok
}

// cluster returns a cluster's newest record, nil if it has none; known says that
// its topic was read to its end at least once.
func (f *final) cluster(name string) (c *position.Cluster, known bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for topic, of := range f.topics {
		if of == name {
			known = f.known[topic]
		}
	}
	if c, ok := f.clusters[name]; ok {
		return &c, known
	}
	return nil, known
}

// opened is a storage.Masters. A look is one at all topics: a shard may move to
// any cluster.
func (f *final) opened(cluster string) storage.Opened {
	f.mu.RLock()
	defer f.mu.RUnlock()
	o := storage.Opened{Looked: f.looked[cluster]}
	for _, of := range f.topics {
		if at := f.looked[of]; at.Before(o.Looked) {
			o.Looked = at
		}
	}
	if c := f.clusters[cluster]; c.State == position.Open {
		o.Node = c.Node
	}
	return o
}

// wait returns when all topics were looked at once, or ctx ends.
func (f *final) wait(ctx context.Context) {
	f.mu.RLock()
	first := f.firstLook
	f.mu.RUnlock()
	if first == nil {
		return
	}
	select {
	case <-first:
	case <-ctx.Done():
	}
}

func (f *final) follow(ctx context.Context, topic string) {
	complained := false
	for ctx.Err() == nil {
		err := f.followOnce(ctx, topic)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, kafka.ErrUnknownTopic) && !complained {
			f.log.Warn("cannot follow the positions: what is final is not known to move on", "topic", topic, "error", err)
			complained = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(finalRetry):
		}
	}
}

// followOnce reads the topic to its end, then goes on until an error.
func (f *final) followOnce(ctx context.Context, topic string) error {
	admin, err := kafka.NewAdmin(f.cfg)
	if err != nil {
		return err
	}
	ends, err := admin.CommittedOffsets(ctx, topic)
	admin.Close()
	if err != nil {
		return err
	}
	end := ends[0]
	if err := kafka.ReadRange(ctx, f.cfg, topic, 0, end.Start, end.End, func(r kafka.Fetched) error { return f.take(topic, r) }); err != nil {
		return err
	}
	f.mu.Lock()
	f.known[topic] = true
	f.wake()
	f.mu.Unlock()
	return kafka.FollowLooking(ctx, f.cfg, kafka.Looking{
		Topic: topic, From: end.End, Every: lookEvery,
		Record: func(r kafka.Fetched) error { return f.take(topic, r) },
		Looked: func(at time.Time) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.looked[f.topics[topic]] = at
			if f.firstLook != nil && len(f.looked) == len(f.topics) {
				close(f.firstLook)
				f.firstLook = nil
			}
		},
	})
}

func (f *final) take(topic string, r kafka.Fetched) error {
	if string(r.Key) == position.ClusterKey && len(r.Value) > 0 {
		c, err := position.Unmarshal[position.Cluster](r.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		// Terms only grow, and in one term open comes after claimed: so one that
		// is read again changes nothing.
		if old := f.clusters[f.topics[topic]]; c.Term > old.Term || c.Term == old.Term && !(old.State == position.Open && c.State == position.Claimed) {
			f.clusters[f.topics[topic]] = c
		}
		return nil
	}
	ds, shard, ok := position.ParseShardKey(string(r.Key))
	if !ok || len(r.Value) == 0 {
		return nil
	}
	p, err := position.Unmarshal[position.Shard](r.Value)
	if err != nil {
		return fmt.Errorf("position of shard %s: %w", cellog.DatabaseName(ds, shard), err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.marks[ds] == nil {
		f.marks[ds] = map[cellog.ShardID]place{}
	}
	// Final is for ever: an older record read again changes nothing.
	m := f.marks[ds][shard]
	handed := p.Owner != f.topics[topic]
	m.Moves = m.Moves || handed
	switch {
	case p.Epoch > m.Epoch || p.Epoch == m.Epoch && p.Last > m.Last:
		m.Epoch, m.First, m.Last, m.owner = p.Epoch, p.First, p.Last, p.Owner
		defer f.wake()
	case p.Epoch == m.Epoch && p.Last == m.Last && handed: // the last that is written of the epoch
		m.owner = p.Owner
	}
	f.marks[ds][shard] = m
	return nil
}

// wake tells those who wait for a change. f.mu is held.
func (f *final) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}
