package rig

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/bench/workload"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
)

const (
	datastore = "trips"
	shards    = 16
)

// sizes adds up what cells weigh.
type sizes struct{ cells, stored, json atomic.Int64 }

// writer writes the cells of one shard. Nobody else writes there, so it counts
// by itself. It is for one goroutine.
type writer struct {
	db    *sql.DB
	shard cellog.ShardID
	rnd   *rand.Rand
	last  int
	sizes *sizes

	q    strings.Builder
	args []any
}

func newWriter(db *sql.DB, shard int, s *sizes) *writer {
	return &writer{db: db, shard: cellog.ShardID(shard), rnd: rand.New(rand.NewPCG(1, uint64(shard))), sizes: s}
}

// add adds a transaction of n cells to the packet that send sends.
func (w *writer) add(n int) error {
	name := cellog.DatabaseName(datastore, w.shard)
	fmt.Fprintf(&w.q, "BEGIN; UPDATE %s.shard_log SET last_added_id = last_added_id + %d; INSERT INTO %s.entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) VALUES ", name, n, name)
	for i := range n {
		w.last++
		row := make([]byte, 16)
		for k := range row {
			row[k] = byte(w.rnd.Uint32())
		}
		js := workload.Trip(w.rnd)
		stored, err := body.Encode(nil, js, body.Limits{})
		if err != nil {
			return err
		}
		w.sizes.cells.Add(1)
		w.sizes.stored.Add(int64(len(stored)))
		w.sizes.json.Add(int64(len(js)))
		if i > 0 {
			w.q.WriteByte(',')
		}
		w.q.WriteString("(?,1,?,'BASE',1,?,UTC_TIMESTAMP(6))")
		w.args = append(w.args, w.last, row, stored)
	}
	w.q.WriteString("; COMMIT; ")
	return nil
}

// send returns when what was added is committed.
func (w *writer) send(ctx context.Context) error {
	_, err := w.db.ExecContext(ctx, w.q.String(), w.args...)
	w.q.Reset()
	w.args = w.args[:0]
	return err
}

// fill writes n cells in transactions of perTx; n is a multiple of it.
func fill(tb testing.TB, node *mysqltest.Node, n, perTx int) *sizes {
	tb.Helper()
	const packet = 16 // cells a round trip, if they are more than a transaction's
	s := &sizes{}
	db := node.DB(tb, "")
	var left atomic.Int64 // transactions
	left.Store(int64(n / perTx))
	g, ctx := errgroup.WithContext(tb.Context())
	for shard := range shards {
		g.Go(func() error {
			w := newWriter(db, shard, s)
			for more := true; more; {
				for range max(1, packet/perTx) {
					if more = left.Add(-1) >= 0; !more {
						break
					}
					if err := w.add(perTx); err != nil {
						return err
					}
				}
				if len(w.args) > 0 {
					if err := w.send(ctx); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		tb.Fatalf("fill: %v", err)
	}
	return s
}

// load is a writer per shard and when their cells were committed.
type load struct {
	writers []*writer
	mu      sync.Mutex
	commits [shards][]time.Time // of a shard's cells, in order
}

func newLoad(tb testing.TB, node *mysqltest.Node) *load {
	db, s := node.DB(tb, ""), &sizes{}
	l := &load{}
	for shard := range shards {
		l.writers = append(l.writers, newWriter(db, shard, s))
	}
	return l
}

// put writes for a time: transactions of perTx cells, cells a second of them in
// all shards together, or as fast as it goes if that is zero. It returns how
// many cells it wrote.
func (l *load) put(ctx context.Context, rate float64, perTx int, length time.Duration) (int, error) {
	var cells atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for i, w := range l.writers {
		g.Go(func() error {
			step := time.Duration(0)
			if rate > 0 {
				step = time.Duration(float64(time.Second) * float64(shards*perTx) / rate)
			}
			// The writers take turns, and none waits for another's answer.
			for due := began.Add(step * time.Duration(i) / shards); due.Before(began.Add(length)) && time.Since(began) < length; due = due.Add(step) {
				if step > 0 {
					time.Sleep(time.Until(due))
				}
				if err := w.add(perTx); err != nil {
					return err
				}
				if err := w.send(ctx); err != nil {
					return err
				}
				now := time.Now()
				l.mu.Lock()
				for range perTx {
					l.commits[i] = append(l.commits[i], now)
				}
				l.mu.Unlock()
				cells.Add(int64(perTx))
			}
			return nil
		})
	}
	err := g.Wait()
	return int(cells.Load()), err
}

// written returns how many cells each shard has.
func (l *load) written() (n [shards]int, all int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range l.commits {
		n[i] = len(c)
		all += int64(len(c))
	}
	return n, all
}
