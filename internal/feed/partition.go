package feed

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog/internal/kafka"
)

// entry is a cell between its arrival and the commit of its offset.
type entry struct {
	d        Delivery
	epoch    int32 // the leader epoch of its record
	size     int
	finished bool
	attempts int
}

// row is a row with unfinished cells, in order. It is in at most one of three
// places: in ready, with a worker, or waiting for its timer.
type row struct {
	cells []*entry
	timer *time.Timer
}

// partition is a partition that this member holds, from OnAssign to OnRevoke.
//
// Invariants, under mu:
//
//  1. window holds, in offset order, every cell read from the first unfinished
//     one on; window[0] is unfinished.
//  2. next is the offset after the last cell that left the window, and done
//     are the marks of those cells: what may be committed, and nothing else.
//  3. Cells of one row are handled one after the other: a row has one worker
//     at most, and its first cell stays first until it is finished.
//  4. Once closing is set no handler starts; once closed is set nothing that a
//     handler returns changes anything.
type partition struct {
	f   *Feed
	id  kafka.Partition
	gen int64
	// ctx is the handlers'; it ends when the time to finish is over.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	window  []*entry
	bytes   int
	paused  bool
	seen    marks // of the cells that were read
	done    marks
	next    int64
	epoch   int32 // the leader epoch of the record before next
	dirty   bool  // next is not committed
	closing bool
	closed  bool
	stopped error

	rows    map[uuid.UUID]*row
	ready   []*row
	running int
	// quiet is closed when closing is set and running has come to zero.
	quiet chan struct{}

	// the batch mode's own
	retry   *time.Timer
	batches int // failures of the batch at the head
}

func newPartition(f *Feed, a *kafka.Assignment, m marks) *partition {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(f.ctx))
	return &partition{
		f: f, id: a.Partition, gen: m.Generation, ctx: ctx, cancel: cancel,
		seen: m.clone(), done: m, next: a.Offset, epoch: a.LeaderEpoch,
		rows: make(map[uuid.UUID]*row), quiet: make(chan struct{}),
	}
}

// add takes cells in that were read, and says what stops the partition, if
// anything does. It never blocks.
func (p *partition) add(entries []*entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing || p.stopped != nil {
		return nil
	}
	for _, e := range entries {
		c := &e.d.Cell
		last, known := p.seen.last(c.Shard, c.Column)
		if known && c.Sequence > last+1 {
			p.stopped = &HoleError{Partition: p.id, Offset: e.d.Offset, Cell: c.ID(), Column: c.Column, Want: last + 1, Got: c.Sequence}
			break
		}
		e.d.Generation = p.gen
		if known && c.Sequence <= last {
			e.finished = true
			p.f.m.duplicates.Inc()
		} else {
			p.seen.set(c.Shard, c.Column, c.Sequence)
		}
		p.window = append(p.window, e)
		p.bytes += e.size
		if !e.finished && p.f.cfg.Handle != nil {
			p.enqueue(e)
		}
	}
	p.advance()
	p.schedule()
	if !p.paused && p.full(1) {
		p.paused = true
		p.f.src.Pause(p.id)
	}
	return p.stopped
}

// stop makes the partition take no more cells.
func (p *partition) stop(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped == nil {
		p.stopped = err
	}
}

func (p *partition) full(divisor int) bool {
	return len(p.window) >= max(1, p.f.cfg.MaxCells/divisor) || p.bytes >= max(1, p.f.cfg.MaxBytes/divisor)
}

// advance lets finished cells leave the window.
func (p *partition) advance() {
	n := 0
	for _, e := range p.window {
		if !e.finished {
			break
		}
		n++
		c := &e.d.Cell
		if last, _ := p.done.last(c.Shard, c.Column); c.Sequence > last {
			p.done.set(c.Shard, c.Column, c.Sequence)
		}
		p.next, p.epoch, p.dirty = e.d.Offset+1, e.epoch, true
		p.bytes -= e.size
	}
	if n == 0 {
		return
	}
	clear(p.window[:n])
	p.window = p.window[n:]
	if p.paused && !p.full(2) && p.stopped == nil {
		p.paused = false
		p.f.src.Resume(p.id)
	}
}

// commit returns what is to be committed, if anything is.
func (p *partition) commit() (kafka.Commit, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dirty || p.closed {
		return kafka.Commit{}, false
	}
	p.dirty = false
	return kafka.Commit{Partition: p.id, Offset: p.next, LeaderEpoch: p.epoch, Metadata: p.done.String()}, true
}

// uncommit notes that a commit failed.
func (p *partition) uncommit() {
	p.mu.Lock()
	p.dirty = true
	p.mu.Unlock()
}

// close waits for the handlers that run until ctx ends, then takes their
// context away. Afterwards only commit has an effect, until forget.
func (p *partition) close(ctx context.Context) {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		for _, r := range p.rows {
			if r.timer != nil {
				r.timer.Stop()
			}
		}
		if p.retry != nil {
			p.retry.Stop()
		}
		if p.running == 0 {
			close(p.quiet)
		}
	}
	p.mu.Unlock()
	select {
	case <-p.quiet:
	case <-ctx.Done():
	}
	p.cancel(ErrTaken)
}

// forget ends everything: late results are ignored.
func (p *partition) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.bytes, p.window, p.rows, p.ready = 0, nil, nil, nil
}

// begun and ended count handlers; both under mu. begun is false when none may
// start.
func (p *partition) begun() bool {
	if p.closing {
		return false
	}
	p.running++
	p.f.workers.Add(1)
	return true
}

func (p *partition) ended() {
	p.running--
	if p.closing && p.running == 0 {
		close(p.quiet)
	}
	p.f.workers.Done()
}

// oldest returns the record time of the first unfinished cell.
func (p *partition) oldest() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.window) == 0 {
		return time.Time{}, false
	}
	return p.window[0].d.CreatedAt, true
}

func (p *partition) stopErr() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// call runs a handler and turns its panic into an error.
func call(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// taken says whether a handler failed only because it was told to stop, or
// would have been.
func taken(ctx context.Context, err error) bool {
	return errors.Is(err, ErrTaken) || err != nil && errors.Is(context.Cause(ctx), ErrTaken)
}
