package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
)

// A page of an entity table has at most so many rows and so many bytes of
// bodies, or one row that is bigger. Each reader holds one page.
const (
	pageRows  = 1000
	pageBytes = 1 << 20
	// arenaBytes is how much memory a page takes at a time for its bodies.
	arenaBytes = 64 << 10
)

// progressEvery is the time between two lines in the log about a fill.
const progressEvery = 10 * time.Second

// Fill says how far a fill from the entity tables is; it is zero while there is
// none. Cells of Of are read and numbered, so many a second since it began.
type Fill struct {
	Cells, Of int64
	PerSecond float64
}

// reading is how a session reads entity tables: several shards at a time, a page
// of each ahead of what takes them.
type reading struct {
	entities EntityReader
	shards   int           // how many are read at a time
	wait     time.Duration // for a row that must be there
	yield    *yielder
}

// job is a piece of a shard's log that is to be read.
type job struct {
	shard       ShardKey
	after, upTo cellog.AddedID
	// prepare, if not nil, is called for each row by the goroutine that read it.
	prepare func(*Row) error
	over    atomic.Bool // nobody wants the rest
}

// page is what a reader hands over: dense rows, and what, if anything, ends the
// shard behind them, marked ErrShard.
type page struct {
	job  *job
	rows []Row
	err  error
}

// pages reads the jobs and hands their pages to take, those of a shard in order,
// and calls tick now and then; both from the goroutine that calls pages. It
// returns when all is read, or with the first error that ends no single shard;
// no reader is left then.
func (r *reading) pages(ctx context.Context, jobs []*job, every time.Duration, tick func() error, take func(*page) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan *job)
	out := make(chan *page) // a reader's page waits in its hands: so there are no more than readers
	g.Go(func() error {
		defer close(next)
		for _, j := range jobs {
			select {
			case next <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range min(max(r.shards, 1), len(jobs)) {
		g.Go(func() error {
			for j := range next {
				if err := r.read(ctx, j, out); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var readErr error
	go func() {
		readErr = g.Wait()
		close(out)
	}()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		var err error
		select {
		case p, ok := <-out:
			if !ok {
				return readErr
			}
			err = take(p)
		case <-t.C:
			err = tick()
		}
		if err != nil {
			cancel()
			for range out { // until the readers are gone
			}
			return err
		}
	}
}

// read hands a job's pages over. A row that is not there yet is waited for.
func (r *reading) read(ctx context.Context, j *job, out chan<- *page) error {
	limit := pageRows
	var deadline time.Time
	for j.after < j.upTo && !j.over.Load() {
		if err := r.yield.wait(ctx); err != nil {
			return err
		}
		p, size, err := r.page(ctx, j, limit)
		if err != nil {
			return err
		}
		if n := len(p.rows); n > 0 {
			j.after, deadline = p.rows[n-1].AddedID, time.Time{}
			// Rows about as big as these fill the next page, and no more.
			limit = min(max(n*pageBytes/max(size, 1), 1), pageRows)
		} else if p.err == nil {
			if deadline.IsZero() {
				deadline = time.Now().Add(r.wait)
			}
			if time.Now().Before(deadline) {
				if err := sleep(ctx, 20*time.Millisecond); err != nil {
					return err
				}
				continue
			}
			p.err = fmt.Errorf("%w: its log goes on to added_id %d, but the entity table does not have %d, which must come next: compare the table with the cluster's other nodes", ErrShard, j.upTo, j.after+1)
		}
		end := p.err != nil
		select {
		case out <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
		if end {
			return nil
		}
	}
	return nil
}

var errPageEnd = errors.New("the page ends")

// page reads the rows that follow, as far as they are dense.
func (r *reading) page(ctx context.Context, j *job, limit int) (p *page, size int, err error) {
	p = &page{job: j, rows: make([]Row, 0, limit)}
	var arena []byte
	err = r.entities.ScanEntity(ctx, j.shard, j.after, j.upTo, limit, func(c *cellog.Cell) error {
		if c.AddedID != j.after+cellog.AddedID(len(p.rows))+1 || len(p.rows) > 0 && size+len(c.Body) > pageBytes {
			return errPageEnd
		}
		if cap(arena)-len(arena) < len(c.Body) {
			arena = make([]byte, 0, max(arenaBytes, len(c.Body)))
		}
		start := len(arena)
		arena = append(arena, c.Body...)
		size += len(c.Body)
		p.rows = append(p.rows, Row{AddedID: c.AddedID, Epoch: c.Epoch, RowKey: c.Row, Column: c.Column, Ref: c.Ref,
			Body: arena[start:len(arena):len(arena)], CreatedAt: c.CreatedAt, TraceParent: c.TraceParent})
		if j.prepare == nil {
			return nil
		}
		if err := j.prepare(&p.rows[len(p.rows)-1]); err != nil {
			p.rows = p.rows[:len(p.rows)-1]
			return err
		}
		return nil
	})
	switch {
	case errors.Is(err, ErrShard):
		p.err = err
	case err != nil && !errors.Is(err, errPageEnd):
		return nil, 0, fmt.Errorf("read %s.entity after %d: %w", j.shard, j.after, err)
	}
	return p, size, nil
}

// yielder holds readers back while the node that they read lags: their work is
// what it lacks to follow.
type yielder struct {
	lag     func(ctx context.Context) (time.Duration, bool)
	most    time.Duration
	logger  *slog.Logger
	cluster string
	node    string
	metrics *metrics

	mu     sync.Mutex // also held while one waits for all
	looked time.Time
	paused bool
}

// How often a node is asked for its lag, and after which pause a page is read
// all the same: a node may lag for another reason, and must not stop the stream.
const (
	lagEvery = time.Second
	mostRest = time.Minute
)

// wait returns when the next page may be read.
func (y *yielder) wait(ctx context.Context) error {
	if y == nil || y.lag == nil || y.most <= 0 {
		return nil
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	for began := time.Now(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !y.paused && time.Since(y.looked) < lagEvery {
			return nil
		}
		lag, known := y.lag(ctx)
		y.looked = time.Now()
		behind := known && lag > y.most
		if behind != y.paused {
			y.paused = behind
			if behind {
				y.metrics.fillPaused.Set(1)
				y.logger.Warn("the node lags: reading its entity tables pauses until it has caught up", "cluster", y.cluster, "node", y.node, "lag", lag, "most", y.most)
			} else {
				y.metrics.fillPaused.Set(0)
				y.logger.Info("the node has caught up: reading its entity tables goes on", "cluster", y.cluster, "node", y.node, "lag", lag)
			}
		}
		if !behind || time.Since(began) >= mostRest {
			return nil
		}
		if err := sleep(ctx, lagEvery); err != nil {
			return err
		}
	}
}

// fill takes the rows after last up to upTo from entity. The server must have
// them: it has written a later one of the shard into its binlog.
func (s *sequencer) fill(ctx context.Context, k ShardKey, st *shardState, upTo cellog.AddedID) error {
	// What the binlog showed before comes first.
	if err := s.flush(ctx, nil, ""); err != nil || st.last >= upTo {
		return err
	}
	return s.fillJobs(ctx, []*job{{shard: k, after: st.last, upTo: upTo}})
}

// fillAll takes every shard up to its head from entity.
func (s *sequencer) fillAll(ctx context.Context) error {
	var heads []Head
	if err := s.entities.Heads(ctx, func(h Head) error { heads = append(heads, h); return nil }); err != nil {
		return fmt.Errorf("read the heads of the shards: %w", err)
	}
	var jobs []*job
	for _, h := range heads {
		if h.Last == 0 {
			continue
		}
		st, err := s.state(ctx, h.Shard)
		if err != nil {
			return err
		}
		if st != nil && h.Last > st.last {
			jobs = append(jobs, &job{shard: h.Shard, after: st.last, upTo: h.Last})
		}
	}
	return s.fillJobs(ctx, jobs)
}

func (s *sequencer) fillJobs(ctx context.Context, jobs []*job) error {
	if len(jobs) == 0 {
		return nil
	}
	var at Fill
	for _, j := range jobs {
		at.Of += int64(j.upTo - j.after)
	}
	began := time.Now()
	tell := func(log bool) {
		at.PerSecond = float64(at.Cells) / max(time.Since(began).Seconds(), 1e-3)
		s.progress(at, log)
	}
	err := s.reading.pages(ctx, jobs, progressEvery,
		func() error { tell(true); return nil },
		func(p *page) error {
			err := s.page(ctx, p)
			at.Cells += int64(len(p.rows))
			tell(false)
			return err
		})
	if time.Since(began) > progressEvery {
		tell(true)
	}
	s.progress(Fill{}, false)
	return err
}

// page numbers a page and pushes it: so memory stays bounded however long the
// way is.
func (s *sequencer) page(ctx context.Context, p *page) error {
	k := p.job.shard
	st := s.shards[k]
	for i := range p.rows {
		if st.stopped {
			break
		}
		if err := s.next(ctx, k, st, &p.rows[i]); err != nil {
			return err
		}
	}
	if p.err != nil {
		s.halt(k, st, p.err)
	}
	if st.stopped {
		p.job.over.Store(true)
	}
	s.metrics.filled.Add(float64(len(s.items)))
	return s.flush(ctx, nil, "")
}
