package indexer

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// applier applies the batches of a datastore's indexes. While one is being
// applied, others queue up and are applied together in the next: nothing waits
// for a timer, and the transactions grow with the load.
type applier struct {
	x         *Indexer
	datastore string
	queue     chan request
}

type request struct {
	ctx  context.Context
	part Part
	done chan error // has room for the answer
}

func newApplier(x *Indexer, datastore string) *applier {
	return &applier{x: x, datastore: datastore, queue: make(chan request, 256)}
}

// apply returns when the part is durable, or with the reason why it may not
// be.
func (a *applier) apply(ctx context.Context, part Part) error {
	r := request{ctx: ctx, part: part, done: make(chan error, 1)}
	select {
	case a.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *applier) run(ctx context.Context) {
	for {
		var first request
		select {
		case first = <-a.queue:
		case <-ctx.Done():
			return
		}
		together := []request{first}
		for rows := len(first.part.Rows); rows < a.x.cfg.BatchRows; {
			select {
			case r := <-a.queue:
				together = append(together, r)
				rows += len(r.part.Rows)
				continue
			default:
			}
			break
		}
		err := a.applyAll(ctx, together)
		for _, r := range together {
			r.done <- err
		}
	}
}

// attempts at a batch before its feeds hear of the failure: a lost deadlock, a
// refused number or a stale route is mended by simply doing it again.
const attempts = 3

func (a *applier) applyAll(ctx context.Context, requests []request) error {
	parts := make([]Part, 0, len(requests))
	for _, r := range requests {
		if r.ctx.Err() == nil {
			parts = append(parts, r.part)
		}
	}
	if len(parts) == 0 {
		return context.Canceled // nobody waits for it
	}
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
