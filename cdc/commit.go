package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/position"
)

// A transaction that still has cells coming is committed after this time
// unless the tailer is behind by behindCells.
const (
	gatherTime  = 5 * time.Millisecond
	behindCells = 1024
	// cellsPerShard is how many cells a transaction may hold for each shard that
	// it touches, however few it may hold otherwise: its end costs something for
	// each of them, a position at least.
	cellsPerShard = 16
)

// committer puts transcoded cells into Kafka transactions, in order. It
// belongs to one goroutine.
//
// Invariants:
//
//  1. A transaction's positions name exactly the cells that it holds and those
//     of earlier ones.
//  2. A position of the binlog is written only with or after everything that
//     comes before it there.
type committer struct {
	name     string // of the cluster
	sending  string // the failpoint before a transaction begins
	session  Session
	queue    *queue
	maxCells int
	maxBytes int
	metrics  *metrics
	stop     func(shard ShardKey, err error)
	careful  map[ShardKey]cellog.AddedID // while not empty, flush after each cell
	beatDue  time.Duration
	onCommit func(cells int, shards map[ShardKey]position.Shard, beats []Beat)
	tell     func() heartbeat.Tailer

	cluster position.Cluster
	shards  map[ShardKey]*published
	frozen  bool

	// The open transaction.
	touched   map[ShardKey]*published
	beats     []Beat
	cells     int // taken from the queue
	published int // of these, not of stopped shards
	cost      int
	bytes     int
	began     time.Time
	dirty     bool // something to commit
	last      ShardKey
	lastID    cellog.AddedID
}

// published is a shard's position, with the messages of the open transaction
// whose offsets are not known yet.
type published struct {
	position.Shard
	newest  map[string]Message
	stopped bool
}

// refusedError says which cells may be the one that the broker refuses.
type refusedError struct {
	err      error
	suspects map[ShardKey]cellog.AddedID
	culprit  bool // there is one suspect, and it is the one
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// run commits what comes, until in is closed or ctx ends; then it commits the
// rest.
func (c *committer) run(ctx context.Context, in <-chan *chunk) error {
	tick := time.NewTicker(c.beatDue)
	defer tick.Stop()
	beaten := true
	for {
		select {
		case ch, ok := <-in:
			if !ok {
				return c.commit(ctx)
			}
			if err := c.gather(ctx, ch, in); err != nil {
				return err
			}
			beaten = beaten || len(c.beats) > 0
			if err := c.commit(ctx); err != nil {
				return err
			}
		case <-tick.C:
			if !beaten { // MySQL is silent: say that the tailer is alive
				c.beats, c.dirty = append(c.beats, Beat{Cluster: "", WrittenAt: time.Now()}), true
				if err := c.commit(ctx); err != nil {
					return err
				}
			}
			beaten = false
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// gather sends a chunk and, as long as it pays, those that follow.
func (c *committer) gather(ctx context.Context, ch *chunk, in <-chan *chunk) error {
	for {
		select {
		case <-ch.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.send(ctx, ch); err != nil {
			return err
		}
		ch.free()
		if c.cells >= max(c.maxCells, cellsPerShard*len(c.touched)) || c.bytes >= c.maxBytes {
			return nil
		}
		select { // what is there already costs no time
		case next, ok := <-in:
			if !ok {
				return nil
			}
			ch = next
			continue
		default:
		}
		cells, _ := c.queue.inFlight()
		coming := cells - c.cells
		if coming <= 0 || coming < behindCells && time.Since(c.began) > gatherTime {
			return nil
		}
		var ok bool
		select {
		case ch, ok = <-in:
			if !ok {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *committer) send(ctx context.Context, ch *chunk) error {
	if c.cells == 0 && len(ch.items) > 0 {
		failpoint.Hit(c.sending)
	}
	for i := range ch.items {
		it := &ch.items[i]
		c.cells++
		c.cost += it.cost
		c.dirty = true
		if err := c.item(ctx, it); err != nil {
			return err
		}
		if c.cells == 1 {
			c.began = time.Now() // only now: the first one waits until the session may begin
		}
	}
	if len(ch.beats) > 0 {
		c.beats, c.dirty = append(c.beats, ch.beats...), true
	}
	if ch.position != "" && !c.frozen {
		// Alone it is no reason to commit: it goes with the next cell or beat.
		c.cluster.GTID = ch.position
	}
	return nil
}

func (c *committer) item(ctx context.Context, it *item) error {
	p := c.shards[it.shard]
	if p == nil {
		p = &published{Shard: position.Shard{Owner: c.name}}
		c.shards[it.shard] = p
	}
	if p.stopped {
		return nil
	}
	if it.err == nil && it.row.AddedID != p.Last+1 {
		it.err = fmt.Errorf("%w: about to publish added_id %d after %d", ErrShard, it.row.AddedID, p.Last)
	}
	if want := p.Columns[it.row.Column].Sequence + 1; it.err == nil && cellog.Sequence(it.seq) != want {
		it.err = fmt.Errorf("%w: about to publish added_id %d of column %s with sequence %d, want %d", ErrShard, it.row.AddedID, it.row.Column, it.seq, want)
	}
	if it.err != nil {
		p.stopped, c.frozen = true, true
		c.stop(it.shard, it.err)
		return nil
	}
	if p.newest == nil {
		p.newest = make(map[string]Message, 4)
		c.touched[it.shard] = p
	}
	c.last, c.lastID = it.shard, it.row.AddedID
	if err := c.sendMessage(ctx, it.column); err != nil {
		return err
	}
	if it.merged != nil {
		if err := c.sendMessage(ctx, it.merged); err != nil {
			return err
		}
	}
	failpoint.Hit("tailer/sent")
	if it.first {
		p.Epoch, p.First = it.row.Epoch, it.row.AddedID
	}
	p.Last = it.row.AddedID
	if p.Columns == nil {
		p.Columns = make(map[string]position.Column)
	}
	p.Columns[it.row.Column] = position.Column{Sequence: cellog.Sequence(it.seq), AddedID: it.row.AddedID}
	p.newest[it.row.Column] = it.column
	if it.merged != nil {
		p.Columns[position.Merged] = position.Column{Sequence: cellog.Sequence(it.row.AddedID), AddedID: it.row.AddedID}
		p.newest[position.Merged] = it.merged
	}
	c.published++
	if len(c.careful) > 0 {
		if err := c.session.Flush(ctx); err != nil {
			return c.refusal(err, true)
		}
		if upTo, ok := c.careful[it.shard]; ok && it.row.AddedID >= upTo {
			delete(c.careful, it.shard)
		}
	}
	return nil
}

func (c *committer) sendMessage(ctx context.Context, m Message) error {
	c.bytes += m.Size()
	if err := c.session.Send(ctx, m); err != nil {
		return c.refusal(err, len(c.careful) > 0)
	}
	return nil
}

// refusal says which cells the broker may have refused: all of the
// transaction, or the one just sent alone.
func (c *committer) refusal(err error, alone bool) error {
	if !errors.Is(err, ErrRefused) {
		return err
	}
	r := &refusedError{err: err, suspects: make(map[ShardKey]cellog.AddedID), culprit: alone}
	if alone {
		r.suspects[c.last] = c.lastID
		return r
	}
	for k, p := range c.touched {
		r.suspects[k] = p.Last
	}
	r.suspects[c.last] = max(r.suspects[c.last], c.lastID)
	return r
}

func (c *committer) commit(ctx context.Context) error {
	if !c.dirty {
		return nil
	}
	failpoint.Hit("tailer/before-flush")
	if err := c.session.Flush(ctx); err != nil {
		return c.refusal(err, false)
	}
	if c.cells > 0 {
		failpoint.Hit("tailer/flushed") // cells are there, their positions not
	}
	shards := make(map[ShardKey]position.Shard, len(c.touched))
	for k, p := range c.touched {
		for name, m := range p.newest {
			col := p.Columns[name]
			col.Offset = m.Offset()
			p.Columns[name] = col
		}
		p.newest = nil
		shards[k] = p.Shard
	}
	c.cluster.UpdatedAt = time.Now().UTC()
	if err := c.session.Commit(ctx, Commit{Shards: shards, Cluster: c.cluster, Beats: c.beats, Tailer: c.tell()}); err != nil {
		return err
	}
	failpoint.Hit("tailer/committed")
	if c.cells > 0 {
		c.metrics.commitTime.Observe(time.Since(c.began).Seconds())
	}
	c.metrics.commits.Inc()
	c.metrics.cells.Add(float64(c.published))
	c.metrics.bytes.Add(float64(c.bytes))
	c.queue.release(c.cells, c.cost)
	_, waiting := c.queue.inFlight()
	c.metrics.queueBytes.Set(float64(waiting))
	c.onCommit(c.published, shards, c.beats)
	clear(c.touched)
	c.beats, c.cells, c.published, c.cost, c.bytes, c.dirty = nil, 0, 0, 0, 0, false
	return nil
}
