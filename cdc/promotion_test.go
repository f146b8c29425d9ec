package cdc

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/position"
)

// A promotion from beginning to end: the tailer waits while the cluster is
// claimed, and goes on from another node, whose binlog never held what it
// committed before.
func TestTailerGoesOnFromTheNodeThatWasOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, old := newFakeKafka(), newFakeServer()
		old.put(shard0, "BASE", 3)
		var master atomic.Pointer[fakeServer]
		master.Store(old)
		tl := newFakeTailer(t, k, old, func(c *Config) {
			c.Nodes = func(context.Context) ([]Node, error) {
				return []Node{{Name: "n", Source: master.Load(), Entities: master.Load()}}, nil
			}
			c.Beat = func(ctx context.Context, cluster string, beat int64, at time.Time) error {
				return master.Load().beat(ctx, cluster, beat, at)
			}
		})
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if k.now().GTID == "" {
			t.Fatal("no position")
		}
		k.claim(2)
		opens := k.opens()
		time.Sleep(5 * time.Second)
		k.mu.Lock()
		looks := k.looks
		k.mu.Unlock()
		time.Sleep(time.Minute)
		k.mu.Lock()
		looks = k.looks - looks
		k.mu.Unlock()
		if err := tl.Ready(); err == nil || !strings.Contains(err.Error(), "claimed in term 2") || k.opens() != opens {
			t.Errorf("%v, opened %d times while claimed", err, k.opens()-opens)
		}
		if looks < 30 || looks > 70 {
			t.Errorf("looked %d times in a minute", looks)
		}
		// The new master held more than was published: two rows of the old
		// epoch in a shard that goes on, one in a shard that does not.
		old.put(shard0, "STATUS", 2)
		old.put(shard1, "BASE", 1)
		next := old.replica(100)
		for range 90 { // its positions mean other things than the old one's
			next.add(&Transaction{})
		}
		next.epoch = 2
		master.Store(next)
		k.open("n", false, map[ShardKey]cellog.AddedID{shard0: 6, shard1: 2})
		time.Sleep(3 * time.Second)
		if err := tl.Ready(); err != nil {
			t.Error(err)
		}
		if a, b := k.at(shard0), k.at(shard1); a.Last != 5 || a.Epoch != 2 || a.First != 6 || b.Last != 1 || b.Epoch != 2 || b.First != 2 {
			t.Errorf("%+v, %+v", a, b)
		}
		next.put(shard0, "BASE", 2)
		next.put(shard1, "BASE", 1)
		time.Sleep(time.Second)
		if a, b := k.published(t, shard0), k.published(t, shard1); a != 7 || b != 2 {
			t.Errorf("%d and %d published", a, b)
		}
		for i, c := range k.cells[shard0] {
			if want := cellog.Epoch(1 + i/5); c.Epoch != want {
				t.Errorf("added_id %d has epoch %d", c.AddedID, c.Epoch)
			}
		}
		if a := k.at(shard0); a.Last != 7 || a.Epoch != 2 || a.First != 6 {
			t.Errorf("%+v", a)
		}
		if len(tl.Status().Stopped) > 0 {
			t.Error(tl.Status().Stopped)
		}
		mustStop(t, tl)
	})
}

// First divides a shard's epochs exactly.
func TestRowOfAWrongEpochStopsItsShard(t *testing.T) {
	for name, c := range map[string]struct {
		first  cellog.AddedID
		epochs []cellog.Epoch
		last   cellog.AddedID // that is published
	}{
		"old ones below first":       {3, []cellog.Epoch{3, 4, 5, 5, 6}, 5},
		"an old one at first":        {3, []cellog.Epoch{4, 4, 4}, 2},
		"a new one below first":      {3, []cellog.Epoch{4, 5, 5}, 1},
		"a newer one below first":    {3, []cellog.Epoch{4, 6, 6}, 1},
		"a newer one at first":       {3, []cellog.Epoch{4, 4, 6, 6}, 4},
		"an older one after a newer": {1, []cellog.Epoch{5, 6, 5}, 2},
	} {
		for _, from := range []string{"entity", "binlog"} {
			t.Run(name+" from "+from, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k, s := newFakeKafka(), newFakeServer()
					k.claim(5)
					k.open("n1", false, map[ShardKey]cellog.AddedID{shard0: c.first})
					if from == "binlog" {
						k.cluster.GTID = "0"
					}
					for _, e := range c.epochs {
						s.epoch = e
						s.put(shard0, "BASE", 1)
					}
					s.epoch = 6
					tl := newFakeTailer(t, k, s, nil)
					if err := tl.Start(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Second)
					if n := k.published(t, shard0); n != int(c.last) {
						t.Errorf("%d published", n)
					}
					err := tl.Status().Stopped[shard0]
					if stops := int(c.last) < len(c.epochs); stops != errors.Is(err, ErrShard) {
						t.Errorf("stopped: %v", err)
					}
					at := k.at(shard0)
					want := position.Shard{Epoch: 5, First: c.first}
					for i, e := range c.epochs[:c.last] {
						if e > want.Epoch {
							want.Epoch, want.First = e, cellog.AddedID(i+1)
						}
					}
					if at.Epoch != want.Epoch || at.First != want.First || at.Last != c.last {
						t.Errorf("position %+v, want epoch %d from %d", at, want.Epoch, want.First)
					}
					mustStop(t, tl)
				})
			})
		}
	}
}

// A minion may follow a dead branch: that of a master which was not opened.
func TestNodeOfADeadBranchIsNoSource(t *testing.T) {
	for _, published := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			k, dead := newFakeKafka(), newFakeServer()
			dead.put(shard0, "BASE", 2)
			next := dead.replica(2)
			if published {
				tl := newFakeTailer(t, k, dead, nil)
				if err := tl.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				mustStop(t, tl)
			}
			dead.put(shard0, "BASE", 2) // nobody else has them
			next.epoch = 2
			k.claim(2)
			k.open("n3", false, map[ShardKey]cellog.AddedID{shard0: 3})
			var alone atomic.Bool
			tl := newFakeTailer(t, k, next, func(c *Config) {
				c.Nodes = func(context.Context) ([]Node, error) {
					nodes := []Node{{Name: "n2", Source: dead, Entities: dead}}
					if !alone.Load() {
						nodes = append(nodes, Node{Name: "n4", Source: next, Entities: next})
					}
					return nodes, nil
				}
			})
			alone.Store(true)
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			if err := tl.Ready(); !errors.Is(err, ErrNodeBehind) || !strings.Contains(err.Error(), "epoch 1") {
				t.Errorf("published %v: %v", published, err)
			}
			alone.Store(false)
			next.put(shard0, "STATUS", 1)
			time.Sleep(10 * time.Second)
			if st := tl.Status(); st.Node != "n4" || k.published(t, shard0) != 3 || k.cells[shard0][2].Column != "STATUS" {
				t.Errorf("published %v: %+v: %d", published, st, k.published(t, shard0))
			}
			mustStop(t, tl)
		})
	}
}

// A node that is being built has nothing: it is no source, though it lacks no
// shard of a datastore that it knows.
func TestEmptyNodeIsNoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s, empty := newFakeKafka(), newFakeServer(), newFakeServer()
		s.put(shard0, "BASE", 1)
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		mustStop(t, tl)
		tl = newFakeTailer(t, k, empty, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := tl.Ready(); !errors.Is(err, ErrNodeBehind) || !strings.Contains(err.Error(), "no shard at all") ||
			!strings.Contains(err.Error(), "`cellog doctor`") || !strings.Contains(err.Error(), "`cellog cluster rejoin c1 n1`") {
			t.Error(err)
		}
		mustStop(t, tl)
	})
}

func TestMasterThatWasOpenedAloneIsTailed(t *testing.T) {
	for name, c := range map[string]struct {
		alone, answers, writable bool
		node                     string
	}{
		"a minion follows":                {false, true, true, "n2"},
		"it takes no writes yet":          {false, true, false, "n2"},
		"its minions are lost":            {false, false, true, ""},
		"it has none":                     {true, false, true, "n1"},
		"it takes no writes and has none": {true, false, false, "n1"},
		"one came back":                   {true, true, true, "n2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, s := newFakeKafka(), newFakeServer()
				s.put(shard0, "BASE", 1)
				k.claim(2)
				k.open("n1", c.alone, nil)
				master := Node{Name: "n1", Master: c.writable, Source: s, Entities: s}
				minion := Node{Name: "n2", Source: s, Entities: unreadable{s}}
				if c.answers {
					minion.Entities = s
				}
				tl := newFakeTailer(t, k, s, func(cfg *Config) {
					cfg.Nodes = func(context.Context) ([]Node, error) {
						if c.writable {
							return []Node{minion, master}, nil
						}
						return []Node{master, minion}, nil // it looks like one of two minions
					}
				})
				if err := tl.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if st := tl.Status(); st.Node != c.node || (c.node == "") != errors.Is(st.Err, ErrNoNode) {
					t.Errorf("%+v", st)
				}
				mustStop(t, tl)
			})
		})
	}
}

// unreadable is a server that does not answer.
type unreadable struct{ *fakeServer }

func (unreadable) Heads(context.Context, func(Head) error) error { return errors.New("no answer") }

// A row that was in the binlog but could not be read yet when the tailer took
// the shards from entity is found by the second look.
func TestSecondLookFindsWhatTheFirstDidNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		s.put(shard0, "BASE", 1)
		began := time.Now()
		s.hide = func() bool { return time.Since(began) < time.Second }
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		if n := k.published(t, shard0); n != 0 {
			t.Errorf("%d published by the first look", n)
		}
		time.Sleep(3 * time.Second)
		if n := k.published(t, shard0); n != 1 {
			t.Errorf("%d published", n)
		}
		mustStop(t, tl)
	})
}

// What nobody may do is met again by a restart, also soon after a start without
// a position.
func TestBadChangeBeforeTheSecondLookIsMetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		s.put(shard0, "BASE", 1)
		for i := range 3 {
			tl := newFakeTailer(t, k, s, nil)
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if i == 0 {
				s.put(shard0, "BASE", 1)
				s.mu.Lock()
				s.add(&Transaction{Changes: []Change{{Shard: shard0, Bad: errors.New("an update")}}})
				s.mu.Unlock()
				s.put(shard0, "BASE", 1)
			}
			time.Sleep(time.Second)
			if err := tl.Status().Stopped[shard0]; !errors.Is(err, ErrShard) || k.published(t, shard0) != 2 {
				t.Errorf("start %d: stopped: %v, %d published", i, err, k.published(t, shard0))
			}
			mustStop(t, tl)
		}
	})
}
