package cdc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/position"
)

func (s *fakeServer) ScanEntity(ctx context.Context, k ShardKey, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error {
	if s.scan != nil {
		if err := s.scan(k, after); err != nil {
			return err
		}
	}
	cells, err := s.ReadEntity(ctx, k.Datastore, k.Shard, after, limit)
	if err != nil {
		return err
	}
	for i := range cells {
		if cells[i].AddedID > upTo {
			return nil
		}
		if err := f(&cells[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *fakeServer) CellsAt(_ context.Context, at map[ShardKey]cellog.AddedID) (map[ShardKey]cellog.Cell, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[ShardKey]cellog.Cell)
	for k, id := range at {
		if rows := s.rows[k]; int(id) <= len(rows) {
			out[k] = rows[id-1]
		}
	}
	return out, nil
}

// Several shards are read at a time, no more than may be, and each one's cells
// are published in order.
func TestFillReadsSeveralShardsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		keys := []ShardKey{shard0, shard1, {"trips", 2}, {"trips", 3}}
		for _, key := range keys {
			s.put(key, "BASE", 5*pageRows/2)
		}
		s.purged = len(s.binlog)
		var mu sync.Mutex
		now, most := 0, 0
		s.scan = func(ShardKey, cellog.AddedID) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Second) // of the bubble: all that can read do
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
		tl := newFakeTailer(t, k, s, func(c *Config) { c.FillShards = 3 })
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond) // three pages of each of three shards take three seconds
		if f := tl.Status().Fill; f.Of != int64(len(keys)*5*pageRows/2) || f.Cells != 6*pageRows || f.PerSecond < 2*pageRows {
			t.Errorf("under way: %+v", f)
		}
		time.Sleep(10 * time.Second)
		for _, key := range keys {
			if n := k.published(t, key); n != 5*pageRows/2 {
				t.Errorf("%s: %d published", key, n)
			}
		}
		if most != 3 {
			t.Errorf("%d shards were read at a time, want 3", most)
		}
		if st := tl.Status(); st.Fill != (Fill{}) || len(st.Stopped) > 0 {
			t.Errorf("after the end: %+v", st)
		}
		mustStop(t, tl)
	})
}

// A shard that is damaged, or lacks a row, stops alone, before that row.
func TestFillStopsADamagedShardAlone(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(s *fakeServer)
		want   string
	}{
		"damaged": {func(s *fakeServer) {
			s.scan = func(k ShardKey, after cellog.AddedID) error {
				if k == shard0 && after >= pageRows {
					return fmt.Errorf("%w: added_id %d is damaged", ErrShard, after+1)
				}
				return nil
			}
		}, "damaged"},
		"hole": {func(s *fakeServer) {
			s.rows[shard0] = slices.Delete(s.rows[shard0], pageRows, pageRows+1)
			s.rows[shard0] = append(s.rows[shard0], s.rows[shard0][0]) // the head stays
		}, "does not have 1001"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, s := newFakeKafka(), newFakeServer()
				for _, key := range []ShardKey{shard0, shard1} {
					s.put(key, "BASE", 3*pageRows)
				}
				s.purged = len(s.binlog)
				c.damage(s)
				tl := newFakeTailer(t, k, s, nil)
				if err := tl.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				s.put(shard1, "BASE", 1)
				time.Sleep(time.Second)
				st := tl.Status()
				if err := st.Stopped[shard0]; len(st.Stopped) != 1 || !errors.Is(err, ErrShard) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("stopped: %v", st.Stopped)
				}
				if a, b := k.published(t, shard0), k.published(t, shard1); a != pageRows || b != 3*pageRows+1 {
					t.Errorf("%d and %d published", a, b)
				}
				mustStop(t, tl)
			})
		})
	}
}

// Whatever fails in the middle, the next session goes on from the positions.
func TestFillGoesOnAfterFailures(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		k, s := newFakeKafka(), newFakeServer()
		keys := []ShardKey{shard0, shard1, {"trips", 2}, {"trips", 3}}
		total := 0
		for _, key := range keys {
			for _, column := range []string{"BASE", "STATUS", "BASE"} {
				n := 1 + rnd.IntN(2*pageRows)
				s.put(key, column, n)
				total += n
			}
		}
		s.purged = len(s.binlog)
		var mu sync.Mutex
		left := 20 // failures
		fail := func() error {
			mu.Lock()
			defer mu.Unlock()
			if left > 0 && rnd.IntN(6) == 0 {
				left--
				return errors.New("away")
			}
			return nil
		}
		s.scan = func(ShardKey, cellog.AddedID) error { return fail() }
		k.fail = func(op string) error {
			if op == "send" {
				return nil
			}
			return fail()
		}
		tl := newFakeTailer(t, k, s, func(c *Config) { c.MaxTransactionCells = 700 })
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		got := 0
		for _, key := range keys {
			got += k.published(t, key)
		}
		if got != total || left > 0 {
			t.Errorf("%d of %d published, %d failures left", got, total, left)
		}
		mustStop(t, tl)
	})
}

// A page ends at its bytes too: one of big bodies has few rows, and the next one
// asks for no more than that; a bigger body is alone.
func TestPagesAreBoundedInBytes(t *testing.T) {
	s := newFakeServer()
	big, err := body.Encode(nil, fmt.Appendf(nil, `"%0*d"`, pageBytes/4-64, 7), body.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	big = append(make([]byte, pageBytes/4-len(big)), big...) // as long as it says; nobody decodes it here
	s.put(shard0, "BASE", 12)
	for i := range s.rows[shard0] {
		s.rows[shard0][i].Body = append([]byte{byte(i)}, big[1:]...)
	}
	s.rows[shard0][9].Body = make([]byte, pageBytes+1)
	r := reading{entities: s, shards: 1, wait: time.Second}
	var sizes []int
	var next cellog.AddedID
	err = r.pages(t.Context(), []*job{{shard: shard0, upTo: 12}}, time.Hour, nil, func(p *page) error {
		sizes = append(sizes, len(p.rows))
		for i := range p.rows {
			if next++; p.rows[i].AddedID != next || !bytes.Equal(p.rows[i].Body, s.rows[shard0][next-1].Body) {
				t.Errorf("row %d: added_id %d of %d bytes, or another body", next, p.rows[i].AddedID, len(p.rows[i].Body))
			}
		}
		return p.err
	})
	if err != nil || next != 12 || !slices.Equal(sizes, []int{4, 4, 1, 1, 1, 1}) {
		t.Errorf("pages of %v rows, %v", sizes, err)
	}
}

// While the node lags nothing is read, but for a page a minute.
func TestFillYieldsToReplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		s.put(shard0, "BASE", 10*pageRows)
		s.purged = len(s.binlog)
		var mu sync.Mutex
		lag := 11 * time.Second
		tl := newFakeTailer(t, k, s, func(c *Config) {
			c.FillMaxLag = 10 * time.Second
			c.Nodes = func(context.Context) ([]Node, error) {
				return []Node{{Name: "n1", Source: s, Entities: s, Lag: func(context.Context) (time.Duration, bool) {
					mu.Lock()
					defer mu.Unlock()
					return lag, true
				}}}, nil
			}
		})
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if n := k.published(t, shard0); n != 0 {
			t.Errorf("%d cells were read although the node lags", n)
		}
		time.Sleep(20 * time.Second)
		if n := k.published(t, shard0); n != pageRows {
			t.Errorf("%d cells after a minute, want a page", n)
		}
		mu.Lock()
		lag = 10 * time.Second
		mu.Unlock()
		time.Sleep(3 * time.Second)
		if n := k.published(t, shard0); n != 10*pageRows {
			t.Errorf("%d cells after it caught up", n)
		}
		mustStop(t, tl)
	})
}

// A transaction that touches many shards may hold more cells than one that
// touches few: each shard costs it a position.
func TestTransactionsOverManyShardsAreLarger(t *testing.T) {
	for shards, want := range map[int]int{2: 100, 20: 20 * cellsPerShard} {
		k := newFakeKafka()
		sess, _, err := k.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		in := make(chan *chunk, 1000) // there already, all transcoded
		for i := range cap(in) {
			key := ShardKey{"trips", cellog.ShardID(i % shards)}
			n := int64(i/shards + 1)
			c := newChunk()
			c.items = append(c.items, item{shard: key, seq: n, row: Row{AddedID: cellog.AddedID(n), Epoch: 1, Column: "BASE"},
				column: &fakeMessage{cell: cellog.Cell{Datastore: "trips", Shard: key.Shard, AddedID: cellog.AddedID(n), Sequence: cellog.Sequence(n), Key: cellog.Key{Column: "BASE"}}}})
			close(c.done)
			in <- c
		}
		close(in)
		com := &committer{name: "c1", session: sess, queue: newQueue(1), maxCells: 100, maxBytes: 1 << 20, beatDue: time.Hour,
			metrics: newMetrics(nil, "c1", func() float64 { return 0 }, func() float64 { return 0 }), stop: func(k ShardKey, err error) { t.Errorf("%s: %v", k, err) },
			onCommit: func(int, map[ShardKey]position.Shard, []Beat) {}, tell: func() heartbeat.Tailer { return heartbeat.Tailer{} },
			shards: make(map[ShardKey]*published), touched: make(map[ShardKey]*published)}
		if err := com.run(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if sizes := k.sizes(); sizes[0] != want {
			t.Errorf("%d shards: transactions of %v cells, want %d", shards, sizes, want)
		}
	}
}
