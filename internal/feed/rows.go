package feed

import "time"

// enqueue puts a cell behind its row's others. Under mu.
func (p *partition) enqueue(e *entry) {
	r := p.rows[e.d.Row]
	if r == nil {
		r = &row{}
		p.rows[e.d.Row] = r
	}
	r.cells = append(r.cells, e)
	if len(r.cells) == 1 {
		p.ready = append(p.ready, r)
	}
}

// schedule starts what may start: workers for ready rows, or the batch loop.
// Under mu.
func (p *partition) schedule() {
	if p.f.cfg.HandleBatch != nil {
		p.scheduleBatch()
		return
	}
	for p.running < p.f.cfg.Parallel && len(p.ready) > 0 && p.begun() {
		r := p.ready[0]
		p.ready = p.ready[1:]
		go p.work(r)
	}
}

// work handles a row's first cell, then goes on with the row that has waited
// longest, until none is ready.
func (p *partition) work(r *row) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.ended()
	for {
		e := r.cells[0]
		e.attempts++
		e.d.Attempt = e.attempts
		d := e.d
		p.mu.Unlock()

		begin := time.Now()
		err := call(func() error { return p.f.cfg.Handle(p.ctx, d) })
		p.f.handled(p.ctx, &d, time.Since(begin), err)

		p.mu.Lock()
		if p.closed {
			return
		}
		if err != nil {
			p.wait(r, p.f.cfg.backoff(e.attempts))
		} else {
			e.finished = true
			r.cells[0] = nil
			r.cells = r.cells[1:]
			if len(r.cells) > 0 {
				p.ready = append(p.ready, r)
			} else {
				delete(p.rows, d.Row)
			}
			p.advance()
		}
		if p.closing || len(p.ready) == 0 {
			return
		}
		r = p.ready[0]
		p.ready = p.ready[1:]
	}
}

// wait makes a row ready again after d; it holds no worker meanwhile. Under mu.
func (p *partition) wait(r *row, d time.Duration) {
	if p.closing {
		return
	}
	r.timer = time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closing {
			return
		}
		r.timer = nil
		p.ready = append(p.ready, r)
		p.schedule()
	})
}
