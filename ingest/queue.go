package ingest

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/cellog/cellog"
)

// The states of an item.
const (
	queued = iota
	inFlight
	answered
)

// overhead is what an item costs besides its body.
const overhead = 256

// item is one put on its way. What it is and where it goes is set before it is
// queued and only read afterwards; the rest is guarded by mu.
type item struct {
	call      *call
	put       cellog.Put
	datastore string
	shard     cellog.ShardID
	home      Peer // another worker; nil: it is written here

	mu     sync.Mutex
	state  int
	result Result
	maybe  bool // another worker may have stored it
}

func (it *item) size() int64 { return int64(len(it.put.Body)) + overhead }

// begin marks the item as being written; false if its caller has gone.
func (it *item) begin() bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.state != queued {
		return false
	}
	it.state = inFlight
	return true
}

// again marks an item that was in flight as queued once more; false if its
// caller has gone.
func (it *item) again(maybe bool) bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.maybe = it.maybe || maybe
	if it.state != inFlight {
		return false
	}
	it.state = queued
	return true
}

// unsure returns the error to answer: that nothing was kept is not known of an
// item that another worker may have stored. it.mu is held.
func (it *item) unsure(err error) error {
	if err == nil || !it.maybe {
		return err
	}
	return fmt.Errorf("%w (%w)", ErrOutcomeUnknown, err)
}

// answer gives the item its result, unless its caller has gone.
func (it *item) answer(r Result) {
	it.mu.Lock()
	if it.state == inFlight {
		it.state = answered
		r.Err = it.unsure(r.Err)
		it.result = r
	}
	it.mu.Unlock()
	it.call.finish()
}

func (it *item) take() Result {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.result
}

// call is one PutMany.
type call struct {
	items   []item
	pending atomic.Int64
	done    chan struct{}
}

func (c *call) finish() {
	if c.pending.Add(-1) == 0 {
		close(c.done)
	}
}

// queue is a shard's queue, or a lane to another worker. It lives while it has items.
type queue struct {
	in  *Ingest
	key queueKey

	mu    sync.Mutex
	items []*item
	bytes int64
}

// push appends an item; false if the queue has no room. An empty queue always
// has.
func (q *queue) push(it *item, limit int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := it.size()
	if len(q.items) > 0 && size > limit-q.bytes {
		return false
	}
	q.items = append(q.items, it)
	q.bytes += size
	return true
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0
}

// next takes the items of the next transaction, in order. It returns none when
// the queue is empty or all of its callers have gone.
func (q *queue) next(batch []*item) []*item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var size int64
	n := 0
	for _, it := range q.items {
		s := it.size()
		if len(batch) > 0 && (len(batch) >= q.in.cfg.BatchCells || size+s > q.in.cfg.BatchBytes) {
			break
		}
		n++
		q.bytes -= s
		if !it.begin() {
			it.call.finish()
			continue
		}
		size += s
		batch = append(batch, it)
	}
	clear(q.items[:n])
	if n == len(q.items) {
		q.items = q.items[:0]
	} else {
		q.items = q.items[n:]
	}
	return batch
}

// run writes until the queue is empty.
func (q *queue) run() {
	var batch []*item
	for {
		if q.key.home != nil {
			batch = q.forward(batch[:0])
		} else {
			batch = q.write(batch[:0])
		}
		clear(batch)
		if q.in.retire(q) {
			return
		}
	}
}

// write lets the store write what is queued when it has room for it.
func (q *queue) write(batch []*item) []*item {
	stored, errs := q.callStore(func() []cellog.Put {
		batch = q.next(batch)
		puts := make([]cellog.Put, len(batch))
		for i, it := range batch {
			puts[i] = it.put
		}
		q.in.metrics.batchCells.Observe(float64(len(batch)))
		return puts
	})
	if errs.all != nil && len(batch) == 0 {
		batch = q.next(batch) // a panic before take: these must not meet it again
	}
	if errs.all == nil && q.in.cfg.Buffer != nil {
		q.buffer(batch, stored, errs.each)
	}
	for i, it := range batch {
		q.in.bytes.Add(-it.size())
		r := Result{Err: errs.all}
		if errs.all == nil {
			r = Result{stored[i], errs.each[i]}
		}
		it.answer(r)
	}
	q.in.metrics.queueBytes.Set(float64(q.in.bytes.Load()))
	return batch
}

// buffer has those cells kept elsewhere that the store could not write, or may
// not have.
func (q *queue) buffer(batch []*item, stored []cellog.Stored, errs []error) {
	var puts []cellog.Put
	var which []int
	for i, it := range batch {
		if code := CodeOf(errs[i]); code == codeUnavailable || code == codeUnknown {
			puts, which = append(puts, it.put), append(which, i)
		}
	}
	if len(puts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), q.in.cfg.BufferAfter)
	defer cancel()
	err := q.in.cfg.Buffer.Buffer(ctx, q.key.datastore, q.key.shard, puts)
	for _, i := range which {
		switch {
		case err == nil:
			stored[i], errs[i] = cellog.Stored{Outcome: cellog.Buffered, Shard: q.key.shard}, nil
		case CodeOf(err) == codeUnknown:
			errs[i] = err
		}
	}
}

// forward has the home write what is queued. What it does not answer, or cannot
// write, is written here.
func (q *queue) forward(batch []*item) []*item {
	batch = q.next(batch)
	if len(batch) == 0 {
		return batch
	}
	puts := make([]cellog.Put, len(batch))
	for i, it := range batch {
		puts[i] = it.put
	}
	stored, errs, sent, err := q.callPeer(puts)
	for i, it := range batch {
		switch {
		case err != nil:
			q.in.writeHere(it, sent)
		case notThere(errs[i]):
			q.in.writeHere(it, CodeOf(errs[i]) == codeUnknown)
		default:
			q.in.metrics.forwarded.Inc()
			q.in.bytes.Add(-it.size())
			stored[i].Shard = it.shard
			it.answer(Result{stored[i], errs[i]})
		}
	}
	q.in.metrics.queueBytes.Set(float64(q.in.bytes.Load()))
	return batch
}

// notThere tells what another worker may be better off with from what is final.
func notThere(err error) bool {
	switch CodeOf(err) {
	case codeUnknown, codeUnavailable, "stopping", "deadline", "misdirected", "unknown_datastore":
		return true
	}
	return false
}

// callPeer calls the home, but waits for no worker that is slow.
func (q *queue) callPeer(puts []cellog.Put) (stored []cellog.Stored, errs []error, sent bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), q.in.cfg.ForwardTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			sent, err = true, fmt.Errorf("the peer panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return q.key.home.Write(ctx, q.key.datastore, puts)
}

// outcome is the errors of a write: one for all cells, or one for each.
type outcome struct {
	all  error
	each []error
}

// callStore calls the store. If that panics the outcome of the cells is
// unknown, and the shard's queue goes on.
func (q *queue) callStore(take func() []cellog.Put) (stored []cellog.Stored, errs outcome) {
	defer func() {
		if p := recover(); p != nil {
			errs.all = fmt.Errorf("%w (the store panicked: %v\n%s)", ErrOutcomeUnknown, p, debug.Stack())
		}
	}()
	limit := q.in.cfg.WriteTimeout
	if q.in.cfg.Buffer != nil {
		limit = min(limit, q.in.cfg.BufferAfter)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	stored, errs.each = q.in.cfg.Store.WriteNext(ctx, q.key.datastore, q.key.shard, take)
	return stored, errs
}
