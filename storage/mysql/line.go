package mysql

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

const (
	// together is how many transactions may run on a server at a time while
	// they are joint. With two, at a steady rate that does not fill them, they
	// were half as large and cost a quarter more of the server's time; latency
	// was worse too (bench/latency).
	together = 1
	// crowd is how many waiting writes let one more run: while one waits for
	// the disk, the other computes. With 256 writers over 16 shards that gave a
	// tenth more (bench/put).
	crowd = 8
	// apart is how many of one shard each may run while none is joint.
	apart = 8
	// maxAlone bounds how many writes go alone after a joint transaction that
	// failed.
	maxAlone = 64
	// groupCells and groupBytes end the gathering of a joint transaction.
	groupCells = 1000
	groupBytes = 8 << 20
)

// line is where the writes of one server wait. Who comes to its head leads: it
// takes along the others that wait, so that the cells of many shards share one
// transaction. A server with thousands of shards would otherwise commit nearly
// every cell by itself.
//
// A joint transaction is for the plain case. When anything is in its way (a
// duplicate, another worker's lock, a stale route) it keeps nothing, its writes
// go on one by one, and so do the next ones, more of them with each failure in
// a row.
type line struct {
	mu      sync.Mutex
	running int
	waiting []*passenger
	alone   int // writes that are yet to go alone
	last    int // alone, as set by the last failure
}

// passenger is one write on its way.
type passenger struct {
	route storage.Route
	take  func() []cellog.Put
	// wantSafe says that its cells are to be made safe once they are written.
	wantSafe bool
	wake     chan bool    // true: lead; false: another has led
	batch    *batch       // set by who leads
	err      error        // of the joint transaction, see Store.join
	start    time.Time    // when its puts were taken
	group    []*passenger // those whom it leads
}

// fill takes the passenger's puts.
func (p *passenger) fill() {
	p.start, p.batch = time.Now(), newBatch(p.take())
	p.batch.wantSafe = p.wantSafe
}

// enter waits until p leads, or has been taken along. led is false too when ctx
// was done before: then p.batch is nil.
func (l *line) enter(ctx context.Context, p *passenger) (led bool) {
	p.wake = make(chan bool, 1)
	l.mu.Lock()
	l.waiting = append(l.waiting, p)
	l.admit()
	l.mu.Unlock()
	select {
	case led = <-p.wake:
		return led
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, p)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		return false
	}
	return <-p.wake
}

// admit lets the longest waiting lead. l.mu is held.
func (l *line) admit() {
	limit := together
	switch {
	case l.alone > 0:
		limit = apart
	case len(l.waiting) >= crowd:
		limit++
	}
	for len(l.waiting) > 0 && l.running < limit {
		l.running++
		l.next().wake <- true
	}
}

func (l *line) next() *passenger {
	p := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	return p
}

// leave ends what the leader has led.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.admit()
}

// gather takes the leader's puts, and those of the writes that go with it.
func (l *line) gather(leader *passenger) {
	for p, cells, size := leader, 0, 0; p != nil; p = l.board(leader) {
		p.fill()
		cells += len(p.batch.puts)
		for i := range p.batch.puts {
			size += len(p.batch.puts[i].Body)
		}
		if cells >= groupCells || size >= groupBytes {
			return
		}
	}
}

// board lets the next one go with the leader; nil if there is none, or the
// leader is to go alone.
func (l *line) board(leader *passenger) *passenger {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.alone > 0 && len(leader.group) == 0 {
		l.alone--
		return nil
	}
	if len(l.waiting) == 0 {
		return nil
	}
	p := l.next()
	leader.group = append(leader.group, p)
	return p
}

// joined takes down how a joint transaction ended.
func (l *line) joined(ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		l.last = 0
		return
	}
	l.last = min(max(2*l.last, apart), maxAlone)
	l.alone = l.last
}
