package indexer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/feed"
	"github.com/cellog/cellog/internal/kafka"
)

// Indexer feeds indexes from the topics of their columns. Each index has a
// consumer group of its own, so a new one reads its topics from the first
// record; all indexes of a datastore share one applier, and so their
// transactions.
type Indexer struct {
	cfg Config
	m   *metrics

	beats feed.Heartbeats

	mu    sync.Mutex
	feeds map[*Index]*feed.Feed
	ran   bool
}

// New returns an Indexer; Run starts it.
func New(cfg Config) (*Indexer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	x := &Indexer{cfg: cfg, feeds: map[*Index]*feed.Feed{}}
	x.m = newMetrics(cfg.Registerer, x.Lag)
	return x, nil
}

// Group returns the consumer group of an index.
func Group(topicPrefix string, ix *Index) string {
	return topicPrefix + "cellog.index." + ix.datastore + "." + ix.name
}

// Run makes the tables, then feeds the indexes until ctx ends; it then
// finishes and commits what is in hand, for up to Drain, and returns nil. What
// cannot begin yet (a server or the broker is away) is tried again and logged;
// an index whose tables were made from another definition ends Run with that
// error. An Indexer runs once.
func (x *Indexer) Run(ctx context.Context) error {
	x.mu.Lock()
	ran := x.ran
	x.ran = true
	x.mu.Unlock()
	if ran {
		return errors.New("indexer: Run was called before")
	}
	var following sync.WaitGroup
	follow, unfollow := context.WithCancel(ctx)
	following.Go(func() { x.beats.Follow(follow, x.cfg.Kafka, x.cfg.TopicPrefix, x.cfg.Logger) })
	defer func() { unfollow(); following.Wait() }()
	// The appliers outlive ctx: feeds hand out and wait for what is in hand.
	applying, stop := context.WithCancel(context.WithoutCancel(ctx))
	var appliers sync.WaitGroup
	byDatastore := map[string]*applier{}
	for _, ix := range x.cfg.Indexes {
		if byDatastore[ix.datastore] == nil {
			a := newApplier(x, ix.datastore)
			byDatastore[ix.datastore] = a
			appliers.Go(func() { a.run(applying) })
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, ix := range x.cfg.Indexes {
		g.Go(func() error { return x.index(gctx, ix, byDatastore[ix.datastore]) })
	}
	err := g.Wait()
	stop()
	appliers.Wait()
	return err
}

// index feeds one index until ctx ends.
func (x *Indexer) index(ctx context.Context, ix *Index, a *applier) error {
	log := x.cfg.Logger.With("datastore", ix.datastore, "index", ix.name)
	var topics []string
	for _, c := range ix.columns {
		topics = append(topics, cellog.TopicName(x.cfg.TopicPrefix, ix.datastore, c.Key))
	}
	var catch *catchUp
	for failures := 1; ; failures++ {
		building, err := x.cfg.Tables.Ensure(ctx, ix)
		if errors.Is(err, ErrDefinition) {
			return err
		}
		if building && catch == nil {
			catch = &catchUp{}
		}
		if err == nil {
			err = catch.begin(ctx, x.cfg.Kafka, topics)
		}
		if err == nil {
			err = x.note(ctx, ix, catch, kafka.Partition{}, 0) // perhaps there is nothing
		}
		if err == nil {
			err = x.feed(ctx, ix, a, topics, catch)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrMoved) {
			log.Warn("a promotion: the index goes back to what the new master has", "err", err)
			failures = 0
			continue
		}
		log.Error("the index's feed cannot begin", "err", err)
		if !pause(ctx, failures) {
			return nil
		}
	}
}

func (x *Indexer) feed(ctx context.Context, ix *Index, a *applier, topics []string, catch *catchUp) error {
	f, err := feed.New(feed.Config{
		Kafka:          x.cfg.Kafka,
		Group:          Group(x.cfg.TopicPrefix, ix),
		Topics:         topics,
		Drain:          x.cfg.Drain,
		SessionTimeout: x.cfg.SessionTimeout,
		BackoffMax:     2 * time.Second,
		Logger:         x.cfg.Logger,
		Registerer:     x.cfg.Registerer,
		HandleBatch:    func(ctx context.Context, take func() feed.Batch) error { return x.handle(ctx, ix, a, take, catch) },
		OnAssign: func(ctx context.Context, as *feed.Assignment) error {
			if as.Fresh {
				return nil
			}
			next, err := x.cfg.Tables.Progress(ctx, ix, as.Partition.Topic, as.Partition.Partition)
			if err != nil {
				return fmt.Errorf("index %s: progress: %w", ix, err)
			}
			as.Offset = min(as.Offset, next)
			return x.note(ctx, ix, catch, as.Partition, as.Offset)
		},
	})
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.feeds[ix] = f
	x.mu.Unlock()
	run, moved := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { x.watch(run, ix, moved) })
	err = f.Run(run)
	if cause := context.Cause(run); errors.Is(cause, ErrMoved) {
		err = cause
	}
	moved(nil)
	watching.Wait()
	return err
}

// settledEvery is how often an index looks whether its shards are where they
// were.
const settledEvery = 500 * time.Millisecond

// watch ends a feed when a shard of the index has moved.
func (x *Indexer) watch(ctx context.Context, ix *Index, moved context.CancelCauseFunc) {
	t := time.NewTicker(settledEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := x.cfg.Tables.Settled(ctx, ix); errors.Is(err, ErrMoved) {
				moved(err)
				return
			}
		}
	}
}

// handle applies one partition's batch, together with others.
func (x *Indexer) handle(ctx context.Context, ix *Index, a *applier, take func() feed.Batch, catch *catchUp) error {
	var b feed.Batch
	c := NewCollector(ix)
	var part Part
	err := a.apply(ctx, func() Part {
		b = take()
		for i := range b.Cells {
			c.Add(&b.Cells[i])
		}
		part = c.Part()
		part.Progress = []Progress{{Topic: b.Partition.Topic, Partition: b.Partition.Partition, Next: b.Next}}
		return part
	})
	if err != nil {
		return err
	}
	x.m.cells.WithLabelValues(ix.datastore, ix.name).Add(float64(c.Cells))
	x.m.mismatches.WithLabelValues(ix.datastore, ix.name).Add(float64(c.Mismatches))
	x.m.rows.WithLabelValues(ix.datastore, ix.name).Add(float64(len(part.Rows)))
	visible := x.m.visible.WithLabelValues(ix.datastore, ix.name)
	if n := len(b.Cells); n > 0 {
		visible.Observe(time.Since(b.Cells[n-1].CreatedAt).Seconds())
		if n > 1 {
			visible.Observe(time.Since(b.Cells[0].CreatedAt).Seconds())
		}
	}
	return x.note(ctx, ix, catch, b.Partition, b.Next)
}

// note takes down how far a partition is, and records the index as ready when
// it has all that was there at the start.
func (x *Indexer) note(ctx context.Context, ix *Index, catch *catchUp, p kafka.Partition, next int64) error {
	if !catch.reached(p, next) {
		return nil
	}
	if err := x.cfg.Tables.MarkReady(ctx, ix); err != nil {
		catch.again()
		return err
	}
	x.cfg.Logger.Info("index has caught up", "datastore", ix.datastore, "index", ix.name)
	return nil
}

// Err returns what stopped partitions of the indexes; nil when all go on.
func (x *Indexer) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var err error
	for ix, f := range x.feeds {
		if ferr := f.Err(); ferr != nil {
			err = errors.Join(err, fmt.Errorf("index %s: %w", ix, ferr))
		}
	}
	return err
}

// Lag returns, per index (datastore/name), the age of the oldest cell that was
// read and is not in the index yet or, when there is none, of the newest
// heartbeat that came through Kafka from every cluster; so it is true when
// idle and when anything before it is stuck. It has no entry for an index
// while no heartbeat was seen and nothing is unfinished.
func (x *Indexer) Lag() map[string]time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	lags := make(map[string]time.Duration)
	for ix, f := range x.feeds {
		since, known := x.beats.Oldest()
		if t, ok := f.Oldest(); ok && (!known || t.Before(since)) {
			since, known = t, true
		}
		if known {
			lags[ix.String()] = max(0, now.Sub(since))
		}
	}
	return lags
}

// pause waits, longer with each failure, up to 5 s; false when ctx ended.
func pause(ctx context.Context, failures int) bool {
	d := min(50*time.Millisecond<<min(failures, 10), 5*time.Second)
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
