package demo

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

// putters is how many puts are under way at most.
const putters = 64

// load lets the city live and puts its cells.
type load struct {
	cfg   Config
	cells *client.Client
	watch *watch

	puts lags // how long puts took

	mu      sync.Mutex
	stored  map[string]int // by column
	behind  time.Duration  // how far the load is behind its plan
	failure error
}

// put is a cell on its way; trip is set for BASE.
type put struct {
	cellog.Put
	trip *Trip
}

// run ends the trips of a city for cfg.For, then sends what is late at once,
// and returns when all is answered. It returns an error when a put was
// refused.
func (l *load) run(ctx context.Context) error {
	work := make(chan put)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range putters {
		wg.Go(func() {
			for p := range work {
				if err := l.store(ctx, p); err != nil {
					l.fail(err)
					cancel()
				}
			}
		})
	}
	l.live(ctx, work)
	close(work)
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		return l.failure
	}
	return context.Cause(ctx)
}

// live sends cells when they are due.
func (l *load) live(ctx context.Context, work chan<- put) {
	city := NewCity(l.cfg.Seed)
	speed := Speed(l.cfg.Rate)
	began := time.Now()
	real := func(at time.Time) time.Time {
		return began.Add(time.Duration(float64(at.Sub(begin)) / speed))
	}
	send := func(p put) bool {
		select {
		case work <- p:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var late lateHeap
	next := city.Next()
	for {
		at := next.Ended
		isLate := len(late) > 0 && late[0].at.Before(at)
		if isLate {
			at = late[0].at
		}
		due := real(at)
		if due.Sub(began) > l.cfg.For {
			break
		}
		if !sleepUntil(ctx, due) {
			return
		}
		l.setBehind(time.Since(due))
		if isLate {
			if !send(heap.Pop(&late).(lateCell).put) {
				return
			}
			continue
		}
		t := next
		next = city.Next()
		for _, c := range lateCells(t) {
			heap.Push(&late, c)
		}
		l.watch.expect(t)
		if !send(put{Put: cellog.Put{Key: cellog.Key{Row: t.Row, Column: columnBase, Ref: 1}, Body: t.Base()}, trip: t}) {
			return
		}
	}
	for len(late) > 0 {
		if !send(heap.Pop(&late).(lateCell).put) {
			return
		}
	}
}

// store puts a cell until it is answered for.
func (l *load) store(ctx context.Context, p put) error {
	begin := time.Now()
	for {
		res, err := l.cells.Put(ctx, l.cfg.Datastore, p.Put)
		var refused *client.Problem
		switch {
		case err == nil && !res.Buffered:
			l.puts.add(time.Since(begin))
			l.mu.Lock()
			l.stored[p.Column]++
			l.mu.Unlock()
			if p.trip != nil {
				l.watch.ack(p.trip)
			}
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case client.IsConflict(err) || client.IsRefused(err):
			return fmt.Errorf("put %s: %w", p.Key, err)
		case errors.As(err, &refused) || client.IsUnknown(err) || err == nil:
			// not now: the same cell again
		}
		if !sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) {
			return ctx.Err()
		}
	}
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = err
	}
}

func (l *load) setBehind(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind = d
}

// counts returns the cells answered for, by column, and how far the load is
// behind its plan.
func (l *load) counts() (map[string]int, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]int, len(l.stored))
	for k, v := range l.stored {
		out[k] = v
	}
	return out, l.behind
}

// lateCell is a note or an adjustment, due at a time of the city's clock.
type lateCell struct {
	at  time.Time
	put put
}

func lateCells(t *Trip) []lateCell {
	var out []lateCell
	cell := func(after time.Duration, column string, row uuid.UUID, body []byte) {
		out = append(out, lateCell{t.Ended.Add(after), put{Put: cellog.Put{Key: cellog.Key{Row: row, Column: column, Ref: 1}, Body: body}}})
	}
	if t.NoteAfter > 0 {
		cell(t.NoteAfter, columnNotes, t.Row, t.Note())
	}
	if t.AdjustAfter > 0 {
		cell(t.AdjustAfter, columnAdjustment, t.Row, t.Adjustment())
	}
	return out
}

type lateHeap []lateCell

func (h lateHeap) Len() int           { return len(h) }
func (h lateHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h lateHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lateHeap) Push(x any)        { *h = append(*h, x.(lateCell)) }
func (h *lateHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// sleepUntil returns false if ctx ended first.
func sleepUntil(ctx context.Context, at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
