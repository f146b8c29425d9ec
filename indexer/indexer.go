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
	return &Indexer{cfg: cfg, m: newMetrics(cfg.Registerer), feeds: map[*Index]*feed.Feed{}}, nil
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
	var building bool
	for failures := 1; ; failures++ {
		var err error
		if building, err = x.cfg.Tables.Ensure(ctx, ix); err == nil {
			break
		}
		if errors.Is(err, ErrDefinition) {
			return err
		}
		log.Error("cannot make the index's tables yet", "err", err)
		if !pause(ctx, failures) {
			return nil
		}
	}
	var topics []string
	for _, c := range ix.columns {
		topics = append(topics, cellog.TopicName(x.cfg.TopicPrefix, ix.datastore, c.Key))
	}
	var catch *catchUp
	if building {
		catch = &catchUp{}
	}
	for failures := 1; ; failures++ {
		err := catch.begin(ctx, x.cfg.Kafka, topics)
		if err == nil {
			err = x.feed(ctx, ix, a, topics, catch)
		}
		if ctx.Err() != nil {
			return nil
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
		HandleBatch:    func(ctx context.Context, b feed.Batch) error { return x.handle(ctx, ix, a, b, catch) },
		OnAssign: func(ctx context.Context, as *feed.Assignment) error {
			if as.Fresh {
				return nil
			}
			next, err := x.cfg.Tables.Progress(ctx, ix, as.Partition.Topic, as.Partition.Partition)
			if err != nil {
				return fmt.Errorf("index %s: progress: %w", ix, err)
			}
			as.Offset = min(as.Offset, next)
			return nil
		},
	})
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.feeds[ix] = f
	x.mu.Unlock()
	return f.Run(ctx)
}

// handle applies one partition's batch, together with others.
func (x *Indexer) handle(ctx context.Context, ix *Index, a *applier, b feed.Batch, catch *catchUp) error {
	c := NewCollector(ix)
	for i := range b.Cells {
		c.Add(&b.Cells[i])
	}
	part := c.Part()
	part.Progress = []Progress{{Topic: b.Partition.Topic, Partition: b.Partition.Partition, Next: b.Next}}
	if err := a.apply(ctx, part); err != nil {
		return err
	}
	x.m.cells.WithLabelValues(ix.datastore, ix.name).Add(float64(c.Cells))
	x.m.mismatches.WithLabelValues(ix.datastore, ix.name).Add(float64(c.Mismatches))
	x.m.rows.WithLabelValues(ix.datastore, ix.name).Add(float64(len(part.Rows)))
	lag := x.m.lag.WithLabelValues(ix.datastore, ix.name)
	if n := len(b.Cells); n > 0 {
		lag.Observe(time.Since(b.Cells[n-1].CreatedAt).Seconds())
		if n > 1 {
			lag.Observe(time.Since(b.Cells[0].CreatedAt).Seconds())
		}
	}
	if catch.reached(b.Partition, b.Next) {
		if err := x.cfg.Tables.MarkReady(ctx, ix); err != nil {
			catch.again()
			return err
		}
		x.cfg.Logger.Info("index has caught up", "datastore", ix.datastore, "index", ix.name)
	}
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

// Oldest returns the creation time of the oldest cell that was read and is not
// in all its indexes yet; ok is false when there is none.
func (x *Indexer) Oldest() (oldest time.Time, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.feeds {
		if t, has := f.Oldest(); has && (!ok || t.Before(oldest)) {
			oldest, ok = t, true
		}
	}
	return oldest, ok
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

// catchUp knows what was there when an index began, so that it is seen when
// all of that is applied. A nil catchUp is done.
type catchUp struct {
	mu    sync.Mutex
	begun bool
	done  bool
	left  map[kafka.Partition]int64
}

func (c *catchUp) begin(ctx context.Context, cfg kafka.Config, topics []string) error {
	if c == nil {
		return nil
	}
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: cfg})
	if err != nil {
		return err
	}
	defer consumer.Close()
	spans, err := consumer.Spans(ctx, kafka.FromZero(), topics...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun {
		return nil
	}
	c.begun = true
	c.left = map[kafka.Partition]int64{}
	for _, s := range spans {
		if s.To > s.From {
			c.left[s.Partition] = s.To
		}
	}
	return nil
}

// reached is true once: when the last partition got as far as it was.
func (c *catchUp) reached(p kafka.Partition, next int64) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return false
	}
	if end, ok := c.left[p]; ok && next >= end {
		delete(c.left, p)
	}
	c.done = len(c.left) == 0
	return c.done
}

// again takes back a reached that was not recorded.
func (c *catchUp) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = false
}
