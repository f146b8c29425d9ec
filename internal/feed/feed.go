package feed

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
)

// pollCells bounds the cells of one poll, so the overshoot of a window.
const pollCells = 2000

// source is the member of a consumer group that a Feed reads: *kafka.Group.
// Poll's function and the callbacks never run at the same time.
type source interface {
	Poll(ctx context.Context, max int, fn func(kafka.Partition, []kafka.Delivery, error)) error
	Commit(ctx context.Context, commits ...kafka.Commit) error
	Pause(ps ...kafka.Partition)
	Resume(ps ...kafka.Partition)
	Close()
}

// Feed is one member of a consumer group that hands cells to a function.
type Feed struct {
	cfg Config
	m   *metrics
	// join is kafka.JoinGroup, but for tests.
	join func(context.Context, kafka.GroupConfig) (source, error)

	// set by Run before anything reads them
	ctx context.Context
	src source

	workers sync.WaitGroup

	// commits orders commits against losing partitions: what is committed is
	// chosen, and the answer awaited, under it, and a partition leaves held
	// under it.
	commits sync.Mutex

	mu   sync.Mutex
	held map[kafka.Partition]*partition
	ran  bool
}

// New returns a Feed; Run starts it.
func New(cfg Config) (*Feed, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Feed{
		cfg:  cfg,
		held: make(map[kafka.Partition]*partition),
		join: func(ctx context.Context, g kafka.GroupConfig) (source, error) { return kafka.JoinGroup(ctx, g) },
	}, nil
}

// Run joins the group and feeds until ctx ends; then it lets handlers finish
// for up to Drain, commits, leaves the group and returns nil. It returns an
// error if it cannot begin. A Feed runs once.
func (f *Feed) Run(ctx context.Context) error {
	f.mu.Lock()
	if f.ran {
		f.mu.Unlock()
		return errors.New("feed " + f.cfg.Group + ": Run was called before")
	}
	f.ran = true
	f.mu.Unlock()

	var err error
	if f.m, err = newMetrics(f.cfg.Registerer, f.cfg.Group, f.cfg.Topics); err != nil {
		return err
	}
	defer f.m.unregister(f.cfg.Registerer)
	f.ctx = ctx
	ready := make(chan struct{}) // src is set: callbacks may come before JoinGroup returns
	src, err := f.join(ctx, kafka.GroupConfig{
		ConsumerConfig: kafka.ConsumerConfig{Config: f.cfg.Kafka},
		Group:          f.cfg.Group,
		Topics:         f.cfg.Topics,
		From:           f.cfg.From,
		SessionTimeout: f.cfg.SessionTimeout,
		OnAssigned: func(ctx context.Context, as []*kafka.Assignment) error {
			<-ready
			return f.assigned(ctx, as)
		},
		OnRevoked: func(_ context.Context, ps []kafka.Partition) { f.revoked(ps) },
		OnLost:    f.lost,
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	f.src = src
	close(ready)

	committing, stopCommitting := context.WithCancel(context.WithoutCancel(ctx))
	committed := make(chan struct{})
	go func() {
		defer close(committed)
		f.commitLoop(committing)
	}()

	for {
		err := src.Poll(ctx, pollCells, f.dispatch)
		if ctx.Err() != nil || errors.Is(err, kafka.ErrClosed) {
			break
		}
		if err != nil {
			f.m.sessions.Inc()
			f.cfg.Logger.Error("consumer group session failed; joining again", "group", f.cfg.Group, "err", err)
		}
	}
	src.Close() // revokes: drains and commits
	stopCommitting()
	<-committed
	f.workers.Wait()
	return nil
}

// Err returns what stopped partitions of this member; nil when all go on.
func (f *Feed) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	for _, p := range f.held {
		err = errors.Join(err, p.stopErr())
	}
	return err
}

// Oldest returns the creation time of the oldest cell that was read and is not
// finished; ok is false when this member has finished all it read.
func (f *Feed) Oldest() (oldest time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.held {
		if t, has := p.oldest(); has && (!ok || t.Before(oldest)) {
			oldest, ok = t, true
		}
	}
	return oldest, ok
}

// Partitions returns the number of partitions that this member holds.
func (f *Feed) Partitions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

// assigned begins partitions.
func (f *Feed) assigned(ctx context.Context, as []*kafka.Assignment) error {
	begin := make(map[kafka.Partition]*partition, len(as))
	giveUp := func() {
		for _, p := range begin {
			p.cancel(ErrTaken)
		}
	}
	for _, a := range as {
		m := parseMarks(a.Metadata)
		// A broker that forgot the group counts generations anew.
		m.Generation = max(m.Generation+1, a.Generation)
		m.Whole = m.Whole || (a.Fresh && f.cfg.From.Zero()) || a.Offset == 0
		if f.cfg.OnAssign != nil {
			told := &Assignment{Partition: a.Partition, Generation: m.Generation, Offset: a.Offset, Fresh: a.Fresh}
			if err := f.cfg.OnAssign(ctx, told); err != nil {
				giveUp()
				return err
			}
			if told.Offset < a.Offset {
				a.Offset, a.LeaderEpoch = told.Offset, -1
				m.Marks, m.Whole = nil, told.Offset == 0
			}
		}
		a.Metadata = m.String()
		begin[a.Partition] = newPartition(f, a, m)
	}
	f.mu.Lock()
	maps.Copy(f.held, begin)
	f.m.partitions.Set(float64(len(f.held)))
	f.mu.Unlock()
	return nil
}

// dispatch takes in what was read of a partition. It must not block.
func (f *Feed) dispatch(id kafka.Partition, got []kafka.Delivery, err error) {
	f.mu.Lock()
	p := f.held[id]
	f.mu.Unlock()
	if p == nil {
		return
	}
	entries := make([]*entry, 0, len(got))
	for i := range got {
		c, derr := record.Decode(got[i].Record)
		if derr != nil {
			err = &RecordError{Partition: id, Offset: got[i].Offset, Err: derr}
			break
		}
		entries = append(entries, &entry{
			d:     Delivery{Cell: c, Partition: id, Offset: got[i].Offset},
			epoch: got[i].LeaderEpoch,
			size:  len(c.Body) + 256,
		})
	}
	if was := p.stopErr(); was != nil {
		return
	}
	if hole := p.add(entries); hole != nil {
		err = hole
	}
	if err != nil {
		p.stop(err)
		f.src.Pause(id)
		f.countStopped()
		f.cfg.Logger.Error("partition stopped", "group", f.cfg.Group, "topic", id.Topic, "partition", id.Partition, "err", err)
		if f.cfg.OnStop != nil {
			f.cfg.OnStop(id, err)
		}
	}
}

// revoked gives partitions up in order: finish, commit, forget.
func (f *Feed) revoked(ids []kafka.Partition) {
	ps := f.find(ids)
	ctx, cancel := context.WithTimeout(context.Background(), f.cfg.Drain)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(func() { p.close(ctx) })
	}
	wg.Wait()
	f.commits.Lock()
	defer f.commits.Unlock()
	f.commitLocked(ps)
	f.drop(ps)
}

// lost gives partitions up that another member may have already.
func (f *Feed) lost(ids []kafka.Partition) {
	ps := f.find(ids)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for _, p := range ps {
		p.close(over)
	}
	f.commits.Lock()
	defer f.commits.Unlock()
	f.drop(ps)
	f.cfg.Logger.Warn("partitions lost without notice", "group", f.cfg.Group, "partitions", len(ids))
}

func (f *Feed) find(ids []kafka.Partition) []*partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ps []*partition
	for _, id := range ids {
		if p := f.held[id]; p != nil {
			ps = append(ps, p)
		}
	}
	return ps
}

func (f *Feed) drop(ps []*partition) {
	for _, p := range ps {
		p.forget()
		f.mu.Lock()
		delete(f.held, p.id)
		f.m.partitions.Set(float64(len(f.held)))
		f.mu.Unlock()
		if f.cfg.OnRevoke != nil {
			f.cfg.OnRevoke(p.id)
		}
	}
	f.countStopped()
}

func (f *Feed) countStopped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, p := range f.held {
		if p.stopErr() != nil {
			n++
		}
	}
	f.m.stopped.Set(float64(n))
}

// commitLoop commits what was finished, until ctx ends.
func (f *Feed) commitLoop(ctx context.Context) {
	tick := time.NewTicker(f.cfg.CommitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.commits.Lock()
		f.mu.Lock()
		ps := slices.Collect(maps.Values(f.held))
		f.mu.Unlock()
		f.commitLocked(ps)
		f.commits.Unlock()
	}
}

// commitLocked commits what the partitions have finished. Under commits.
func (f *Feed) commitLocked(ps []*partition) {
	var commits []kafka.Commit
	var of []*partition
	for _, p := range ps {
		if c, ok := p.commit(); ok {
			commits, of = append(commits, c), append(of, p)
		}
	}
	if len(commits) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := f.src.Commit(ctx, commits...); err != nil {
		for _, p := range of {
			p.uncommit()
		}
		f.m.unsafe.Inc()
		f.cfg.Logger.Warn("offset commit failed", "group", f.cfg.Group, "err", err)
		return
	}
	f.m.commits.Inc()
}

// handled counts one call of Handle, and says what failed.
func (f *Feed) handled(ctx context.Context, d *Delivery, took time.Duration, err error) {
	f.m.seconds.Observe(took.Seconds())
	if d.Attempt > 1 {
		f.m.retries.Inc()
	}
	switch {
	case err == nil:
		f.m.delivered.Inc()
	case taken(ctx, err):
	default:
		f.m.failed.Inc()
		f.cfg.Logger.Warn("handler failed; its row waits", "group", f.cfg.Group, "cell", d.ID(), "key", d.Key.String(), "attempt", d.Attempt, "err", err)
	}
}

// handledBatch does the same for HandleBatch.
func (f *Feed) handledBatch(ctx context.Context, b *Batch, took time.Duration, err error) {
	f.m.seconds.Observe(took.Seconds())
	if b.Attempt > 1 {
		f.m.retries.Inc()
	}
	switch {
	case err == nil:
		f.m.delivered.Add(float64(len(b.Cells)))
	case taken(ctx, err):
	default:
		f.m.failed.Inc()
		f.cfg.Logger.Warn("batch failed; its partition waits", "group", f.cfg.Group, "topic", b.Partition.Topic, "partition", b.Partition.Partition,
			"cells", len(b.Cells), "attempt", b.Attempt, "err", err)
	}
}
