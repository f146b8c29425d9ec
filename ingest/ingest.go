package ingest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// Result is what became of one put: Err, or where the cell is that stands.
type Result struct {
	Stored cellog.Stored
	Err    error
}

// lanes is how many requests may be on their way to another worker at a time.
// All cells of a shard take the same lane. Fewer make larger requests, more
// keep a shard that is stuck from holding up others.
const lanes = 4

// queueKey names a shard's queue, or a lane to another worker.
type queueKey struct {
	datastore string
	shard     cellog.ShardID
	home      Peer // nil: written here
}

// Ingest takes puts. All methods may be called at the same time.
type Ingest struct {
	cfg     Config
	metrics *metrics
	bytes   atomic.Int64 // queued and in flight

	mu      sync.Mutex
	queues  map[queueKey]*queue // those with work, each with a goroutine
	stopped bool
	idle    chan struct{} // closed when stopped and without queues
}

// New checks the configuration and returns a running Ingest: it has nothing to
// start, a shard's goroutine comes with its first put and goes with its last.
func New(cfg Config) (*Ingest, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Ingest{cfg: cfg, metrics: newMetrics(cfg.Registerer), queues: map[queueKey]*queue{}, idle: make(chan struct{})}, nil
}

// Stop refuses new puts and waits until all accepted ones are answered, or
// until ctx is done. Stopping twice is safe.
func (in *Ingest) Stop(ctx context.Context) error {
	in.mu.Lock()
	if !in.stopped {
		in.stopped = true
		if len(in.queues) == 0 {
			close(in.idle)
		}
	}
	in.mu.Unlock()
	select {
	case <-in.idle: // also when the time is up
		return nil
	default:
	}
	select {
	case <-in.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ingest: stop: puts are still being written: %w", ctx.Err())
	}
}

// Put stores one cell. See the package's promises for what an error means.
func (in *Ingest) Put(ctx context.Context, datastore string, p cellog.Put) (cellog.Stored, error) {
	r := in.PutMany(ctx, datastore, []cellog.Put{p})
	return r[0].Stored, r[0].Err
}

// PutMany stores many cells of a datastore; result i is that of put i. Cells
// of one shard are written in their order. Each cell ends by itself: that one
// is refused does not touch the others.
func (in *Ingest) PutMany(ctx context.Context, datastore string, puts []cellog.Put) []Result {
	return in.submit(ctx, len(puts), func(i int, it *item) error { return in.prepare(datastore, &puts[i], it) })
}

// Take stores cells that another worker has forwarded: their bodies are in
// stored form, and they are not forwarded again. It ends in time for the other
// one to hear of those that were done.
func (in *Ingest) Take(ctx context.Context, datastore string, puts []cellog.Put) []Result {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.ForwardTimeout*3/4)
	defer cancel()
	shards, err := in.cfg.Store.Shards(datastore)
	return in.submit(ctx, len(puts), func(i int, it *item) error {
		p := &puts[i]
		if err != nil {
			return err
		}
		if err := checkNames(p); err != nil {
			return err
		}
		if err := body.Check(p.Body); err != nil {
			return err
		}
		it.put, it.datastore, it.shard = *p, datastore, cellog.ShardOf(p.Row, shards)
		return nil
	})
}

// submit queues n items and waits for their results.
func (in *Ingest) submit(ctx context.Context, n int, prepare func(int, *item) error) []Result {
	start := time.Now()
	c := &call{items: make([]item, n), done: make(chan struct{})}
	c.pending.Store(1) // held by this function until all are queued
	for i := range c.items {
		it := &c.items[i]
		it.call = c
		if err := prepare(i, it); err != nil {
			it.result.Err = err
			it.state = answered
			continue
		}
		c.pending.Add(1)
		if err := in.enqueue(it); err != nil {
			it.result.Err = err
			it.state = answered
			c.finish()
		}
	}
	c.finish()
	select {
	case <-c.done:
	case <-ctx.Done():
		in.leave(c)
	}
	out := make([]Result, n)
	for i := range c.items {
		it := &c.items[i]
		out[i] = it.take()
		in.metrics.observe(&out[i], time.Since(start))
	}
	return out
}

// prepare checks a put and encodes its body.
func (in *Ingest) prepare(datastore string, p *cellog.Put, it *item) error {
	shards, err := in.cfg.Store.Shards(datastore)
	if err != nil {
		return err
	}
	if err := checkNames(p); err != nil {
		return err
	}
	stored, err := body.Encode(nil, p.Body, in.cfg.Limits)
	if err != nil {
		return err
	}
	it.put = cellog.Put{Key: p.Key, Body: stored, TraceParent: p.TraceParent}
	it.datastore, it.shard = datastore, cellog.ShardOf(p.Row, shards)
	if in.cfg.Peers != nil {
		it.home = in.cfg.Peers.Home(datastore, it.shard)
	}
	return nil
}

func checkNames(p *cellog.Put) error {
	if err := cellog.CheckColumn(p.Column); err != nil {
		return fmt.Errorf("%w: %w", ErrColumn, err)
	}
	if p.TraceParent != "" && !ValidTraceParent(p.TraceParent) {
		return ErrTraceParent
	}
	return nil
}

// enqueue gives an item to its shard's queue.
func (in *Ingest) enqueue(it *item) error {
	size := it.size()
	if in.bytes.Add(size) > in.cfg.QueueBytes {
		in.bytes.Add(-size)
		return ErrOverloaded
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stopped {
		in.bytes.Add(-size)
		return ErrStopped
	}
	key := queueKey{it.datastore, it.shard, it.home}
	if it.home != nil {
		key.shard %= lanes
	}
	if !in.push(it, key, in.cfg.ShardQueueBytes) {
		in.bytes.Add(-size)
		return ErrOverloaded
	}
	in.metrics.queueBytes.Set(float64(in.bytes.Load()))
	return nil
}

// push appends an item to a queue, and runs the queue if it is new; false if
// the queue has no room. in.mu is held.
func (in *Ingest) push(it *item, key queueKey, limit int64) bool {
	q := in.queues[key]
	if q != nil {
		return q.push(it, limit)
	}
	q = &queue{in: in, key: key}
	in.queues[key] = q
	in.metrics.active.Inc()
	q.push(it, limit) // an empty queue always has room
	go q.run()
	return true
}

// writeHere queues an accepted item, which its home has not stored for sure,
// for this worker's own writing.
func (in *Ingest) writeHere(it *item, maybe bool) {
	if !it.again(maybe) {
		in.bytes.Add(-it.size())
		it.call.finish()
		return
	}
	in.metrics.fallbacks.Inc()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.push(it, queueKey{it.datastore, it.shard, nil}, math.MaxInt64) // it is counted already
}

// retire removes a queue that has run empty; false if something came in.
func (in *Ingest) retire(q *queue) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !q.empty() {
		return false
	}
	delete(in.queues, q.key)
	in.metrics.active.Dec()
	if in.stopped && len(in.queues) == 0 {
		close(in.idle)
	}
	return true
}

// leave answers the items of a caller whose time is up.
func (in *Ingest) leave(c *call) {
	for i := range c.items {
		it := &c.items[i]
		it.mu.Lock()
		switch it.state {
		case queued: // its queue skips it
			it.state = answered
			it.result.Err = it.unsure(ErrDeadline)
			in.bytes.Add(-it.size())
		case inFlight:
			it.state = answered
			it.result.Err = ErrOutcomeUnknown
		}
		it.mu.Unlock()
	}
}

// ValidTraceParent reports whether s is a W3C trace context of version 00.
func ValidTraceParent(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	return hexID(s[3:35]) && hexID(s[36:52]) && hexDigits(s[53:])
}

func hexDigits(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// hexID is hex digits that are not all zero.
func hexID(s string) bool {
	for i := range len(s) {
		if s[i] != '0' {
			return hexDigits(s)
		}
	}
	return false
}
