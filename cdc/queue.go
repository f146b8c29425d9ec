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

// chunkItems is how many cells a transcoder takes at a time: enough to make
// the hand-over cheap, few enough to keep all transcoders at work.
const chunkItems = 128

// chunk is what the queue hands over at a time. Its beats and its position come
// after its items. done is closed when those are transcoded.
type chunk struct {
	items    []item
	beats    []Beat
	position string
	done     chan struct{}
}

// chunks are empty ones, so that a backlog needs no new memory for each cell.
var chunks = sync.Pool{New: func() any { return &chunk{items: make([]item, 0, chunkItems)} }}

func newChunk() *chunk {
	c := chunks.Get().(*chunk)
	c.done = make(chan struct{})
	return c
}

// free gives a chunk back; nothing of it may be used any more.
func (c *chunk) free() {
	clear(c.items)
	*c = chunk{items: c.items[:0]}
	chunks.Put(c)
}

// queue holds what was sequenced until the pipeline takes it. push waits while
// more than max bytes are on their way, until release says that they are
// committed; an item bigger than max passes alone.
type queue struct {
	max   int
	ready chan struct{} // has a token while there is something to take
	space chan struct{} // has a token after a release

	mu     sync.Mutex
	chunks []*chunk
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
			q.add(items, beats, position)
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

// add fills the last chunk and further ones; with mu held.
func (q *queue) add(items []item, beats []Beat, position string) {
	var c *chunk
	if n := len(q.chunks); n > 0 {
		c = q.chunks[n-1]
	}
	for c == nil || len(items) > 0 {
		if c == nil || len(c.items) == chunkItems {
			c = newChunk()
			q.chunks = append(q.chunks, c)
		}
		n := min(len(items), chunkItems-len(c.items))
		c.items = append(c.items, items[:n]...)
		items = items[n:]
	}
	c.beats = append(c.beats, beats...)
	if position != "" {
		c.position = position
	}
}

// take waits for a chunk; ok is false once the queue is closed and empty.
func (q *queue) take(ctx context.Context) (c *chunk, ok bool, err error) {
	for {
		q.mu.Lock()
		if len(q.chunks) > 0 {
			c = q.chunks[0]
			q.chunks[0] = nil
			q.chunks = q.chunks[1:]
		}
		closed := q.closed
		q.mu.Unlock()
		if c != nil {
			return c, true, nil
		}
		if closed {
			return nil, false, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, false, ctx.Err()
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
