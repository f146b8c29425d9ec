package feed

import (
	"errors"
	"time"
)

// scheduleBatch starts the partition's one batch worker if there is work and
// no wait is due. Under mu.
func (p *partition) scheduleBatch() {
	if p.running > 0 || p.retry != nil || len(p.window) == 0 || !p.begun() {
		return
	}
	go p.workBatches()
}

// errNotTaken tells a handler's author.
var errNotTaken = errors.New("HandleBatch returned without an error and has not taken its batch")

// workBatches hands out batches from the window's head until it is empty or a
// batch fails.
func (p *partition) workBatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.ended()
	for !p.closing && len(p.window) > 0 {
		p.mu.Unlock()

		var b Batch
		var taking []*entry
		begin := time.Now()
		err := call(func() error {
			return p.f.cfg.HandleBatch(p.ctx, func() Batch {
				p.mu.Lock()
				defer p.mu.Unlock()
				begin = time.Now()
				b, taking = p.head()
				return b
			})
		})
		if err == nil && taking == nil {
			err = errNotTaken
		}
		p.f.handledBatch(p.ctx, &b, time.Since(begin), err)

		p.mu.Lock()
		if p.closed {
			return
		}
		if err != nil {
			p.batches++
			p.waitBatch(p.f.cfg.backoff(p.batches))
			return
		}
		p.batches = 0
		for _, e := range taking {
			e.finished = true
		}
		p.advance()
	}
}

// head returns the next batch: unfinished cells from the window's beginning.
// Under mu.
func (p *partition) head() (Batch, []*entry) {
	b := Batch{Partition: p.id, Generation: p.gen, Attempt: p.batches + 1}
	var taking []*entry
	size := 0
	for _, e := range p.window {
		if e.finished { // a duplicate
			b.Next = e.d.Offset + 1
			continue
		}
		if len(taking) > 0 && (len(taking) >= p.f.cfg.BatchCells || size+e.size > p.f.cfg.BatchBytes) {
			break
		}
		size += e.size
		taking = append(taking, e)
		b.Cells = append(b.Cells, e.d.Cell)
		b.Offsets = append(b.Offsets, e.d.Offset)
		b.Next = e.d.Offset + 1
	}
	return b, taking
}

// waitBatch tries the head again after d. Under mu.
func (p *partition) waitBatch(d time.Duration) {
	if p.closing {
		return
	}
	p.retry = time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.retry = nil
		if !p.closing {
			p.schedule()
		}
	})
}
