package cdc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/position"
)

// Tailer carries one storage cluster's cells to Kafka. Make it with New; run
// it with Run, or with Start and Stop.
type Tailer struct {
	cfg     Config
	metrics *metrics

	mu      sync.Mutex
	cancel  context.CancelFunc
	done    chan struct{}
	stops   map[ShardKey]error // of the present session
	refused map[ShardKey]Stop  // by the broker, for as long as the process lives
	careful map[ShardKey]cellog.AddedID
	status  Status
	since   time.Time                   // when this tailer began to answer for the stream
	heads   map[ShardKey]cellog.AddedID // of the master's shards, at the last look
	// silent is the node that was silent last, silence how long one may be; shown
	// is when the present one showed something, unseen how many heartbeats were
	// written since.
	silent  string
	silence time.Duration
	shown   time.Time
	unseen  int
	// published is up to where each shard is final; nil while that is another
	// tailer's business, or was not read yet.
	published map[ShardKey]position.Shard

	reading atomic.Int64 // bytes of the transaction that is being read
}

// Status is what a tailer is doing.
type Status struct {
	// State is starting, standing-by, waiting, catching-up, streaming, paused or
	// stopped.
	State string
	// Node is the server that is tailed, while streaming.
	Node string
	// Stopped are the shards that need an operator, with the reason.
	Stopped map[ShardKey]error
	// Fill says how far reading from the entity tables is, while it goes on.
	Fill Fill
	// LastCommit is when Kafka last took a transaction.
	LastCommit time.Time
	// Cells is how many cells this tailer has published since New.
	Cells int64
	// LastBeat is when the last heartbeat arrived in Kafka over the whole
	// path. Lag is how old it was then, and more once the next one is overdue;
	// while none has arrived it grows from when this tailer began to answer for
	// the stream. Zero while another tailer does.
	LastBeat time.Time
	Lag      time.Duration
	// LagCells is how many cells the last look at the master's shards found that
	// are not published, zero while another tailer is at work.
	LagCells int64
	// Pause is the newest word on whether the cluster is paused.
	Pause Pause
	// Reading is how many bytes have been read of a big transaction that has not
	// ended; no heartbeat can come before its end.
	Reading int64
	// Err is why the last session ended, nil while streaming.
	Err error
}

// The waits before a new session: the first one after a session that went well,
// and the longest.
const firstWait, mostWait = 50 * time.Millisecond, 5 * time.Second

// Patience is how long a tailer waits at most where an answer may never come.
type Patience struct {
	// Restart is the wait after a session that had gone well.
	Restart time.Duration
	// Heads is how long a node may take to say where its shards stand.
	Heads time.Duration
	// Silent is how long a node may show nothing of what the master writes.
	Silent time.Duration
	// Close is how long a session may take to commit and to close.
	Close time.Duration
}

// Patiences are a tailer's own; those of its servers' connections are for what
// joins the parts to set.
func Patiences() Patience {
	return Patience{Restart: firstWait/2 + firstWait, Heads: headsTimeout, Silent: silentAfter, Close: closeTime}
}

// New checks the configuration and returns a Tailer that does nothing yet.
func New(cfg Config) (*Tailer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Tailer{
		cfg:   cfg,
		stops: make(map[ShardKey]error), refused: make(map[ShardKey]Stop),
		careful: make(map[ShardKey]cellog.AddedID),
		status:  Status{State: "starting"},
	}
	t.metrics = newMetrics(cfg.Registerer, cfg.Cluster,
		func() float64 { return t.Status().Lag.Seconds() }, func() float64 { return float64(t.Status().LagCells) })
	return t, nil
}

// Start runs the tailer in the background and returns at once. Starting a
// started tailer does nothing.
func (t *Tailer) Start(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancel != nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	t.cancel, t.done = cancel, done
	go func() {
		defer close(done)
		t.Run(ctx)
	}()
	return nil
}

// Stop stops reading, commits what is in hand, and returns when all is gone.
// Stopping a stopped tailer does nothing.
func (t *Tailer) Stop(ctx context.Context) error {
	t.mu.Lock()
	cancel, done := t.cancel, t.done
	t.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.mu.Lock()
	if t.done == done {
		t.cancel, t.done = nil, nil
	}
	t.mu.Unlock()
	return nil
}

// Run tails until ctx ends: it starts a session, and a new one whenever one
// ends. It returns once what was in hand at the end is committed or given up.
func (t *Tailer) Run(ctx context.Context) {
	wait := firstWait
	t.mu.Lock()
	t.since = time.Now()
	t.mu.Unlock()
	var looking sync.WaitGroup
	defer looking.Wait()
	if t.cfg.Heads != nil {
		looking.Go(func() { t.lookAtHeads(ctx) })
	}
	for {
		began := time.Now()
		err := t.session(ctx)
		if ctx.Err() != nil {
			t.metrics.sessions.WithLabelValues("stopped").Inc()
			t.set(func(s *Status) { s.State, s.Node = "stopped", "" })
			return
		}
		reason := t.ended(err)
		t.metrics.sessions.WithLabelValues(reason).Inc()
		if reason == "paused" {
			continue // the next session holds until it is resumed
		}
		t.set(func(s *Status) { s.State, s.Node, s.Err = "waiting", "", err })
		if time.Since(began) > mostWait || reason == "fenced" || reason == "refused" {
			wait = firstWait
		}
		t.cfg.Logger.Warn("tailer starts anew", "cluster", t.cfg.Cluster, "reason", reason, "error", err, "wait", wait)
		pause := wait/2 + rand.N(wait)
		if reason == "fenced" {
			pause += rand.N(t.cfg.BeatEvery) // the other one needs a moment to leave its mark
		}
		if sleep(ctx, pause) != nil {
			continue // ctx has ended; the check above returns
		}
		wait = min(2*wait, mostWait)
	}
}

// ended keeps what the next session must know, and names the reason.
func (t *Tailer) ended(err error) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		for k, at := range refused.suspects {
			if !refused.culprit && len(refused.suspects) >= 1 {
				t.careful[k] = max(t.careful[k], at)
				continue
			}
			delete(t.careful, k)
			t.refused[k] = Stop{At: at, Err: fmt.Errorf("%w at added_id %d: %w", ErrShard, at, refused.err)}
		}
		return "refused"
	case errors.Is(err, ErrPaused):
		return "paused"
	case errors.Is(err, ErrFenced):
		return "fenced"
	case errors.Is(err, ErrNotOpened):
		return "not_open"
	case errors.Is(err, ErrNodeSilent):
		return "silent"
	case errors.Is(err, ErrNoNode), errors.Is(err, ErrNodeBehind), errors.Is(err, ErrNodeDiffers):
		return "no_node"
	}
	return "failed"
}

// standsBy takes note that another tailer is at work: what is behind is that
// one's to tell.
func (t *Tailer) standsBy() {
	t.mu.Lock()
	t.status.State, t.status.Err, t.status.LastBeat, t.status.Lag = "standing-by", nil, time.Time{}, 0
	t.published, t.since = nil, time.Now()
	t.mu.Unlock()
	t.metrics.paused.Set(0)
}

func (t *Tailer) set(f func(*Status)) {
	t.mu.Lock()
	f(&t.status)
	t.mu.Unlock()
}

// Status says what the tailer is doing.
func (t *Tailer) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.status
	newest := s.LastBeat
	if newest.IsZero() {
		newest = t.since
	}
	if late := time.Since(newest) - 2*t.cfg.BeatEvery; t.cfg.Beat != nil && !newest.IsZero() && s.State != "standing-by" && late > 0 {
		s.Lag += late // the stream stands still, so its lag grows
	}
	s.LagCells = t.lagCells()
	s.Stopped = maps.Clone(t.stops)
	s.Reading = t.reading.Load()
	return s
}

// Ready returns nil while the stream flows: heartbeats that a master wrote
// have arrived in Kafka lately, or this tailer stands by for another. It fails
// when nothing has arrived for five beats, and while the cluster is paused.
func (t *Tailer) Ready() error {
	s := t.Status()
	if s.State == "standing-by" {
		return nil
	}
	if err := s.Pause.err(t.cfg.Cluster); err != nil {
		return err
	}
	if s.State != "streaming" {
		if s.Err != nil {
			return fmt.Errorf("tailer is %s: %w", s.State, s.Err)
		}
		return fmt.Errorf("tailer is %s", s.State)
	}
	newest := s.LastBeat
	if t.cfg.Beat == nil {
		newest = s.LastCommit // the tailer's own sign of life
	}
	if newest.IsZero() {
		return errors.New("no heartbeat has arrived in Kafka yet")
	}
	if age := time.Since(newest); age > 5*t.cfg.BeatEvery {
		if s.Reading > 0 {
			return fmt.Errorf("the stream stands still: a big transaction is being read, %d MiB so far; the last heartbeat arrived in Kafka %s ago", s.Reading>>20, age.Round(time.Millisecond))
		}
		return fmt.Errorf("the stream stands still: the last heartbeat arrived in Kafka %s ago", age.Round(time.Millisecond))
	}
	return nil
}

// stopShard takes note of a shard that stops.
func (t *Tailer) stopShard(k ShardKey, err error) {
	t.mu.Lock()
	_, known := t.stops[k]
	t.stops[k] = err
	n := len(t.stops)
	t.mu.Unlock()
	t.metrics.stopped.Set(float64(n))
	if !known {
		t.cfg.Logger.Error("shard stopped", "shard", k.String(), "error", err)
	}
}

// sessionState hands out copies of what one session leaves to the next.
func (t *Tailer) sessionState() (refused map[ShardKey]Stop, careful map[ShardKey]cellog.AddedID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.refused), maps.Clone(t.careful)
}
