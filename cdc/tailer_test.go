package cdc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/position"
)

var shard0, shard1 = ShardKey{"trips", 0}, ShardKey{"trips", 1}

func TestOneCellIsCommittedAtOnceAndABacklogInBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		for range 5000 {
			s.put(shard0, "BASE", 5)
		}
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + 100*time.Millisecond) // between two beats
		if n := k.published(t, shard0); n != 25_000 {
			t.Fatalf("%d published", n)
		}
		cells := 0
		for _, n := range k.sizes() {
			if n > 10_000+chunkItems {
				t.Errorf("a commit of %d cells", n)
			}
			cells += n
		}
		before := len(k.sizes())
		began := time.Now()
		s.put(shard0, "BASE", 1)
		synctest.Wait()
		if n := k.published(t, shard0); n != 25_001 || time.Since(began) > 0 {
			t.Errorf("%d published after %s", n, time.Since(began))
		}
		if len(k.sizes()) != before+1 {
			t.Errorf("%d commits for one cell", len(k.sizes())-before)
		}
		if st := tl.Status(); st.State != "streaming" || st.Cells != 25_001 {
			t.Errorf("%+v", st)
		}
		mustStop(t, tl)
		if k.now().TailerMark != "" {
			t.Error("a tailer that stopped cleanly left its mark")
		}
	})
}

func TestReadinessFollowsTheHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		var silent atomic.Bool
		tl := newFakeTailer(t, k, s, func(c *Config) {
			c.Beat = func(ctx context.Context, cluster string, beat int64, at time.Time) error {
				if silent.Load() {
					return errors.New("read only")
				}
				return s.beat(ctx, cluster, beat, at)
			}
		})
		if tl.Ready() == nil {
			t.Error("ready before the start")
		}
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if err := tl.Ready(); err != nil {
			t.Error(err)
		}
		silent.Store(true)
		time.Sleep(4 * time.Second)
		if err := tl.Ready(); err != nil {
			t.Error("too soon:", err)
		}
		time.Sleep(4 * time.Second)
		if err := tl.Ready(); err == nil || !strings.Contains(err.Error(), "stands still") {
			t.Errorf("ready although nothing flows: %v", err)
		}
		if lag := tl.Status().Lag; lag < 4*time.Second || lag > 8*time.Second {
			t.Errorf("lag %s", lag)
		}
		// Another tailer still sees that this one lives.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := k.Watch(ctx, k.now().TailerMark); err != nil {
			t.Error("no sign of life:", err)
		}
		mustStop(t, tl)
	})
}

func TestTwoTailersDoNotFenceEachOtherInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		a, b := newFakeTailer(t, k, s, nil), newFakeTailer(t, k, s, nil)
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s.put(shard0, "BASE", 3)
			time.Sleep(time.Second)
		}
		if k.opens() != 1 || b.Status().State != "standing-by" || b.Ready() != nil {
			t.Errorf("opened %d times, the second is %s", k.opens(), b.Status().State)
		}
		mustStop(t, a) // cleanly: the other need not wait long
		time.Sleep(4 * time.Second)
		if b.Status().State != "streaming" {
			t.Errorf("the second is %s", b.Status().State)
		}
		s.put(shard0, "BASE", 3)
		time.Sleep(time.Second)
		if n := k.published(t, shard0); n != 63 {
			t.Errorf("%d published", n)
		}
		mustStop(t, b)
	})
}

// Two that start at once, each busy for long with looking at its shards, must
// not throw each other out for ever.
func TestTwoTailersThatStartTogetherSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		k.slow = 20 * time.Second
		tailers := []*Tailer{newFakeTailer(t, k, s, nil), newFakeTailer(t, k, s, nil), newFakeTailer(t, k, s, nil)}
		for _, tl := range tailers {
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		s.put(shard0, "BASE", 3)
		time.Sleep(10 * time.Second)
		states := make(map[string]int)
		for _, tl := range tailers {
			states[tl.Status().State]++
		}
		if n := k.published(t, shard0); n != 3 || k.opens() > 3 || states["streaming"] != 1 || states["standing-by"] != 2 {
			t.Errorf("%d published, opened %d times, %v", n, k.opens(), states)
		}
		for _, tl := range tailers {
			mustStop(t, tl)
		}
	})
}

func TestTailerThatLooksForLongIsNotTakenForDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		k.slow = 20 * time.Second
		first, second := newFakeTailer(t, k, s, nil), newFakeTailer(t, k, s, nil)
		if err := first.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := second.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if a, b := first.Status().State, second.Status().State; a != "streaming" || b != "standing-by" || k.opens() != 1 {
			t.Errorf("%s and %s, opened %d times", a, b, k.opens())
		}
		mustStop(t, first)
		mustStop(t, second)
	})
}

// The binlog is read again from before a cell that could not be published.
func TestDamagedBodyIsMetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		s.put(shard1, "BASE", 1)
		first := newFakeTailer(t, k, s, nil)
		if err := first.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		mustStop(t, first)
		if k.now().GTID == "" {
			t.Fatal("no position")
		}
		s.put(shard0, "BASE", 3)
		s.mu.Lock()
		s.binlog[len(s.binlog)-1].Changes[0].Rows[1].Body = []byte("rubbish")
		s.mu.Unlock()
		for range 3 {
			tl := newFakeTailer(t, k, s, nil)
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			s.put(shard1, "BASE", 1)
			time.Sleep(10 * time.Second)
			if st := tl.Status(); len(st.Stopped) != 1 || !errors.Is(st.Stopped[shard0], ErrShard) {
				t.Errorf("stopped: %v", st.Stopped)
			}
			mustStop(t, tl)
		}
		if a, b := k.published(t, shard0), k.published(t, shard1); a != 1 || b != 4 {
			t.Errorf("%d and %d published", a, b)
		}
	})
}

func TestFencedTailerStandsBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		a := newFakeTailer(t, k, s, nil)
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		// Somebody takes over, and its heartbeats flow.
		other, _, err := k.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cluster := k.now()
		cluster.TailerMark = "other"
		for range 10 {
			if err := other.Commit(t.Context(), Commit{Cluster: cluster, Beats: []Beat{{}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if st := a.Status(); st.State != "standing-by" || k.opens() != 2 {
			t.Errorf("%+v, opened %d times", st, k.opens())
		}
		// It falls silent.
		time.Sleep(4 * time.Second)
		if st := a.Status(); st.State != "streaming" {
			t.Errorf("%+v", st)
		}
		mustStop(t, a)
	})
}

func TestClaimedClusterIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		open := k.cluster
		k.cluster = nil
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if st := tl.Status(); !errors.Is(st.Err, ErrNotOpened) || k.opens() != 0 {
			t.Errorf("%+v, opened %d times", st, k.opens())
		}
		k.mu.Lock()
		k.cluster = &position.Cluster{Term: 2, State: position.Claimed}
		k.mu.Unlock()
		time.Sleep(10 * time.Second)
		if st := tl.Status(); !errors.Is(st.Err, ErrNotOpened) || k.opens() != 0 {
			t.Errorf("%+v, opened %d times", st, k.opens())
		}
		k.mu.Lock()
		k.cluster = open
		k.mu.Unlock()
		time.Sleep(10 * time.Second)
		if st := tl.Status(); st.State != "streaming" {
			t.Errorf("%+v", st)
		}
		mustStop(t, tl)
	})
}

func TestRefusedCellStopsItsShardAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		k.refuse = func(c *cellog.Cell) bool { return c.Shard == 1 && c.AddedID == 7 }
		for range 5 {
			s.put(shard0, "BASE", 3)
			s.put(shard1, "BASE", 3)
		}
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		s.put(shard0, "BASE", 3)
		s.put(shard1, "BASE", 3)
		time.Sleep(10 * time.Second)
		if n := k.published(t, shard0); n != 18 {
			t.Errorf("%d published of the good shard", n)
		}
		if n := k.published(t, shard1); n != 6 {
			t.Errorf("%d published of the bad shard", n)
		}
		st := tl.Status()
		if err := st.Stopped[shard1]; len(st.Stopped) != 1 || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "added_id 7") {
			t.Errorf("stopped: %v", st.Stopped)
		}
		// The binlog's position stays before the stop, so that a new process
		// meets it again, and heals once it is accepted.
		mustStop(t, tl)
		k.mu.Lock()
		k.refuse = nil
		k.mu.Unlock()
		tl = newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if n := k.published(t, shard1); n != 18 {
			t.Errorf("%d published of the healed shard", n)
		}
		mustStop(t, tl)
	})
}

func TestNodeThatHoldsAnotherCellIsNoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		s.put(shard0, "BASE", 3)
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		mustStop(t, tl)
		behind, differs := newFakeServer(), newFakeServer()
		behind.put(shard0, "BASE", 2)
		differs.put(shard0, "BASE", 3)
		for _, bad := range []struct {
			server *fakeServer
			want   error
		}{{behind, ErrNodeBehind}, {differs, ErrNodeDiffers}} {
			tl := newFakeTailer(t, k, bad.server, nil)
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			if st := tl.Status(); !errors.Is(st.Err, bad.want) || !errors.Is(st.Err, ErrNoNode) {
				t.Errorf("want %v: %+v", bad.want, st)
			}
			mustStop(t, tl)
		}
		if n := k.published(t, shard0); n != 3 {
			t.Errorf("%d published", n)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		for range 1000 {
			s.put(shard0, "BASE", 10)
		}
		block := make(chan struct{})
		var handed atomic.Int64
		s.fail = func() error { handed.Add(1); return nil }
		blocked := true
		k.fail = func(op string) error {
			if op == "flush" && blocked {
				k.mu.Unlock()
				<-block
				k.mu.Lock()
				blocked = false
			}
			return nil
		}
		tl := newFakeTailer(t, k, s, func(c *Config) { c.MaxQueueBytes = 100_000; c.BeatEvery = time.Hour })
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if handed.Load() > 20 { // 10 cells cost about 10 kB
			t.Errorf("%d transactions were taken while Kafka stood still", handed.Load())
		}
		close(block)
		time.Sleep(time.Minute)
		if n := k.published(t, shard0); n != 10_000 {
			t.Errorf("%d published", n)
		}
		mustStop(t, tl)
	})
}

// Whatever fails, and however often the binlog repeats itself or is lost, each
// shard's cells arrive once and in order.
func TestRandomFailures(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 0))
				k, s := newFakeKafka(), newFakeServer()
				var calm atomic.Bool
				krnd := rand.New(rand.NewPCG(seed, 2)) // under k.mu
				some := func(p float64, err error) error {
					if !calm.Load() && krnd.Float64() < p {
						return err
					}
					return nil
				}
				k.fail = func(op string) error { // under k.mu
					switch op {
					case "send":
						return some(0.002, errors.New("send"))
					case "flush":
						return some(0.02, errors.New("flush"))
					default:
						return errors.Join(some(0.02, errors.New("commit")), some(0.02, errUnclear))
					}
				}
				srnd := rand.New(rand.NewPCG(seed, 1))
				var smu sync.Mutex
				s.fail = func() error {
					smu.Lock()
					defer smu.Unlock()
					if !calm.Load() && srnd.Float64() < 0.01 {
						return errors.New("connection lost")
					}
					return nil
				}
				columns := []string{"BASE", "STATUS", "NOTES"}
				tailers := []*Tailer{
					newFakeTailer(t, k, s, func(c *Config) { c.Merged = func(string) bool { return false } }),
					newFakeTailer(t, k, s, nil),
				}
				for _, tl := range tailers {
					if err := tl.Start(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for i := range 600 {
					s.put(ShardKey{"trips", cellog.ShardID(rnd.IntN(4))}, columns[rnd.IntN(3)], 1+rnd.IntN(5))
					if rnd.IntN(100) == 0 {
						s.mu.Lock()
						s.purged = len(s.binlog) - rnd.IntN(3)
						s.mu.Unlock()
					}
					if i%10 == 0 {
						time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
					}
				}
				calm.Store(true)
				time.Sleep(2 * time.Minute)
				for i := range 4 {
					key := ShardKey{"trips", cellog.ShardID(i)}
					if n := k.published(t, key); n != len(s.rows[key]) {
						t.Errorf("%s: %d of %d published", key, n, len(s.rows[key]))
					}
				}
				for _, tl := range tailers {
					if st := tl.Status(); len(st.Stopped) > 0 {
						t.Errorf("stopped: %v", st.Stopped)
					}
					mustStop(t, tl)
				}
			})
		})
	}
}
