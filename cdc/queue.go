package cdc

import (
	"context"
	"sync"
)

// item is one cell on its way from the sequencer to the committer.
//
// The sequencer writes the first part; a transcoder the second, before it
// closes its chunk's done; the committer reads.
type item struct {
	row   Row
	shard ShardKey
	ds    *Datastore
	seq   int64
	first bool // the first cell of its epoch
	cost  int

	column, merged Message
	err            error
}

// batch is what the queue hands over at a time.
type batch struct {
	items    []item
	beats    []Beat
	position string
}

// queue holds what was sequenced until the pipeline takes it. push waits while
// more than max bytes are on their way, until release says that they are
// committed; an item bigger than max passes alone.
type queue struct {
	max   int
	ready chan struct{} // has a token while there is something to take
	space chan struct{} // has a token after a release

	mu     sync.Mutex
	batch  batch
	bytes  int // pushed and not released
	cells  int // pushed and not released
	closed bool
}

func newQueue(max int) *queue {
	return &queue{max: max, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// push adds items whose costs sum up to bytes. Only the sequencer calls it.
func (q *queue) push(ctx context.Context, items []item, bytes int, beats []Beat, position string) error {
	for {
		q.mu.Lock()
		if q.bytes == 0 || q.bytes+bytes <= q.max {
			q.batch.items = append(q.batch.items, items...)
			q.batch.beats = append(q.batch.beats, beats...)
			if position != "" {
				q.batch.position = position
			}
			q.bytes += bytes
			q.cells += len(items)
			q.mu.Unlock()
			token(q.ready)
			return nil
		}
		q.mu.Unlock()
		select {
		case <-q.space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take waits for something and takes all of it; ok is false once the queue is
// closed and empty.
func (q *queue) take(ctx context.Context) (b batch, ok bool, err error) {
	for {
		q.mu.Lock()
		b, q.batch = q.batch, batch{}
		closed := q.closed
		q.mu.Unlock()
		if len(b.items) > 0 || len(b.beats) > 0 || b.position != "" {
			return b, true, nil
		}
		if closed {
			return b, false, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return b, false, ctx.Err()
		}
	}
}

// release says that so much is committed.
func (q *queue) release(cells, bytes int) {
	q.mu.Lock()
	q.cells -= cells
	q.bytes -= bytes
	q.mu.Unlock()
	token(q.space)
}

// inFlight is how many cells and bytes are pushed and not released.
func (q *queue) inFlight() (cells, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cells, q.bytes
}

// close ends the queue after what is in it.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	token(q.ready)
}
