package indexer

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// pace is the least time from one batch's beginning to the next one's while
// batches follow each other. A batch costs a transaction or two on every
// server, however few cells it has: at a steady rate of small ones the servers
// would do little else. What comes after a pause is applied at once.
const pace = 10 * time.Millisecond

// applier applies the batches of a datastore's indexes. While one is being
// applied, others queue up and are applied together in the next, so the
// transactions grow with the load.
type applier struct {
	x         *Indexer
	datastore string
	queue     chan *request
}

// request is a partition's wish to have its cells applied.
type request struct {
	ctx  context.Context
	take func() Part
	done chan error // has room for the answer

	mu   sync.Mutex
	gone bool // its partition does not wait any more; take must not be called
}

// part takes the request's cells; false if nobody waits for them any more.
func (r *request) part() (Part, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.ctx.Err() != nil {
		return Part{}, false
	}
	return r.take(), true
}

func newApplier(x *Indexer, datastore string) *applier {
	return &applier{x: x, datastore: datastore, queue: make(chan *request, 256)}
}

// apply takes a part when it is its turn, and returns when the part is durable
// or with the reason why it may not be. It does not take after it returned.
func (a *applier) apply(ctx context.Context, take func() Part) error {
	r := &request{ctx: ctx, take: take, done: make(chan error, 1)}
	select {
	case a.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		r.mu.Lock() // not while it takes
		defer r.mu.Unlock()
		r.gone = true
		return ctx.Err()
	}
}

func (a *applier) run(ctx context.Context) {
	var began time.Time
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		var first *request
		select {
		case first = <-a.queue:
		case <-ctx.Done():
			return
		}
		if d := time.Until(began.Add(pace)); d > 0 {
			next.Reset(d)
			select {
			case <-next.C:
			case <-ctx.Done():
				first.done <- ctx.Err()
				return
			}
		}
		began = time.Now()
		a.together(ctx, first)
	}
}

// together applies the first request's part and those of all that wait.
func (a *applier) together(ctx context.Context, first *request) {
	var requests []*request
	var parts []Part
	rows := 0
	for r := first; r != nil; {
		if part, ok := r.part(); ok {
			requests, parts = append(requests, r), append(parts, part)
			rows += len(part.Rows)
		} else {
			r.done <- context.Canceled // nobody waits for it
		}
		r = nil
		if rows < a.x.cfg.BatchRows {
			select {
			case r = <-a.queue:
			default:
			}
		}
	}
	if len(parts) == 0 {
		return
	}
	err := a.applyAll(ctx, parts)
	for _, r := range requests {
		r.done <- err
	}
}

// attempts at a batch before its feeds hear of the failure: a lost deadlock, a
// refused number or a stale route is mended by simply doing it again.
const attempts = 3

func (a *applier) applyAll(ctx context.Context, parts []Part) error {
	b := Batch{Datastore: a.datastore, Parts: mergeParts(parts)}
	var err error
	for failures := 1; failures <= attempts; failures++ {
		begin := time.Now()
		try, cancel := context.WithTimeout(ctx, a.x.cfg.ApplyTimeout)
		err = a.x.cfg.Tables.Apply(try, b)
		cancel()
		if err == nil {
			a.x.m.applySeconds.WithLabelValues(a.datastore).Observe(time.Since(begin).Seconds())
			return nil
		}
		a.x.m.applyErrors.WithLabelValues(a.datastore).Inc()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if failures < attempts && !pause(ctx, failures-1) {
			return ctx.Err()
		}
	}
	return err
}

// mergeParts makes one part per index. Two parts may have a row in common: two
// columns of one index come in two topics.
func mergeParts(parts []Part) []Part {
	type merged struct {
		part *Part
		rows map[uuid.UUID]int
	}
	var order []*Part
	byIndex := map[*Index]*merged{}
	for i := range parts {
		p := &parts[i]
		m := byIndex[p.Index]
		if m == nil {
			byIndex[p.Index] = &merged{part: p}
			order = append(order, p)
			continue
		}
		if m.rows == nil {
			m.rows = make(map[uuid.UUID]int, len(m.part.Rows)+len(p.Rows))
			for i := range m.part.Rows {
				m.rows[m.part.Rows[i].Key] = i
			}
		}
		for _, r := range p.Rows {
			at, ok := m.rows[r.Key]
			if !ok {
				m.rows[r.Key] = len(m.part.Rows)
				m.part.Rows = append(m.part.Rows, r)
				continue
			}
			have := &m.part.Rows[at].State
			p.Index.Join(have, r.State)
			have.Removals = nil // values that no table has seen
		}
		m.part.Applied = append(m.part.Applied, p.Applied...)
		m.part.Progress = append(m.part.Progress, p.Progress...)
	}
	out := make([]Part, len(order))
	for i, p := range order {
		out[i] = *p
	}
	return out
}
