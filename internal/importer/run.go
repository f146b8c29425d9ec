package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
)

// The defaults of Config.
const (
	DefaultBatchCells = 500
	DefaultBatchBytes = 4 << 20
	DefaultParallel   = 4
)

// Result is what became of one put: the worker's outcome, or why there is
// none. It conflicts when Outcome is Conflict, whatever Err says.
type Result struct {
	Outcome cellog.Outcome
	// Buffered: durable, not readable yet.
	Buffered bool
	Err      error
}

// Config says how to put.
type Config struct {
	Datastore string
	// Put stores a batch and returns a result per put, in order. An error
	// ends the import. It may be called concurrently, and must not keep puts.
	Put func(ctx context.Context, datastore string, puts []cellog.Put) ([]Result, error)
	// Report is told of each row that was not imported. Never concurrently.
	Report func(line int, err error)
	// Progress is told of the rows done so far, after each batch. Never
	// concurrently; nil means nobody listens.
	Progress func(Stats)
	// BatchCells and BatchBytes bound a batch, Parallel the batches in
	// flight; zeros mean the defaults.
	BatchCells, BatchBytes, Parallel int
	// MaxBad ends the import when more rows are bad. Zero means never.
	MaxBad int
}

// Stats counts rows by what became of them.
type Stats struct {
	Created  int `json:"created"`
	Same     int `json:"same"`
	Buffered int `json:"buffered"`
	Conflict int `json:"conflict"`
	// Bad rows could not be mapped or were refused.
	Bad int `json:"bad"`
}

// Done is the number of rows counted.
func (s Stats) Done() int { return s.Created + s.Same + s.Buffered + s.Conflict + s.Bad }

// ErrTooManyBad is returned when more rows were bad than Config.MaxBad.
var ErrTooManyBad = errors.New("too many bad rows")

type batch struct {
	puts  []cellog.Put
	lines []int
}

// Run puts all rows of src and counts what became of them. The counts are
// right also when it returns an error, for as far as it came.
func Run(ctx context.Context, src Source, cfg Config) (Stats, error) {
	def := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&cfg.BatchCells, DefaultBatchCells)
	def(&cfg.BatchBytes, DefaultBatchBytes)
	def(&cfg.Parallel, DefaultParallel)
	r := &runner{cfg: cfg}
	g, ctx := errgroup.WithContext(ctx)
	batches := make(chan batch)
	g.Go(func() error {
		defer close(batches)
		return r.read(ctx, src, batches)
	})
	for range cfg.Parallel {
		g.Go(func() error {
			for b := range batches {
				if err := r.put(ctx, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return r.stats, err
}

type runner struct {
	cfg Config

	mu    sync.Mutex // guards stats, and the calls to Report and Progress
	stats Stats
}

func (r *runner) read(ctx context.Context, src Source, out chan<- batch) error {
	var b batch
	size := 0
	send := func() error {
		if len(b.puts) == 0 {
			return nil
		}
		select {
		case out <- b:
			b, size = batch{}, 0
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		p, line, err := src.Next()
		var bad *RowError
		switch {
		case errors.Is(err, io.EOF):
			return send()
		case errors.As(err, &bad):
			if err := r.bad(bad.Line, bad.Err); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if len(b.puts) > 0 && size+len(p.Body) > r.cfg.BatchBytes {
			if err := send(); err != nil {
				return err
			}
		}
		b.puts, b.lines = append(b.puts, p), append(b.lines, line)
		size += len(p.Body)
		if len(b.puts) >= r.cfg.BatchCells {
			if err := send(); err != nil {
				return err
			}
		}
	}
}

func (r *runner) bad(line int, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Bad++
	r.cfg.Report(line, err)
	if r.cfg.MaxBad > 0 && r.stats.Bad > r.cfg.MaxBad {
		return fmt.Errorf("%w: more than %d", ErrTooManyBad, r.cfg.MaxBad)
	}
	return nil
}

func (r *runner) put(ctx context.Context, b batch) error {
	results, err := r.cfg.Put(ctx, r.cfg.Datastore, b.puts)
	if err != nil {
		return fmt.Errorf("the batch of the lines %d … %d: %w", b.lines[0], b.lines[len(b.lines)-1], err)
	}
	for i, res := range results {
		if res.Err != nil && res.Outcome != cellog.Conflict {
			if err := r.bad(b.lines[i], res.Err); err != nil {
				return err
			}
			continue
		}
		r.mu.Lock()
		switch {
		case res.Buffered:
			r.stats.Buffered++
		case res.Outcome == cellog.Created:
			r.stats.Created++
		case res.Outcome == cellog.Same:
			r.stats.Same++
		case res.Outcome == cellog.Conflict:
			r.stats.Conflict++
			r.cfg.Report(b.lines[i], fmt.Errorf("conflict: another body stands under %s", b.puts[i].Key))
		}
		r.mu.Unlock()
	}
	if r.cfg.Progress != nil {
		r.mu.Lock()
		r.cfg.Progress(r.stats)
		r.mu.Unlock()
	}
	return nil
}
