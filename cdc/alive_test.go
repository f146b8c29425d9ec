package cdc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellog/cellog/schemas/position"
)

// word is what an operator last said.
type word struct {
	mu  sync.Mutex
	p   Pause
	err error
}

func (w *word) say(p Pause, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p, w.err = p, err
}

func (w *word) ask(context.Context) (Pause, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.p, w.err
}

func TestPausedTailerHoldsItsPlaceAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		var w word
		paused := func(c *Config) { c.Paused, c.Heads = w.ask, s.Heads }
		a, b := newFakeTailer(t, k, s, paused), newFakeTailer(t, k, s, paused)
		start := func(tl *Tailer) {
			t.Helper()
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		start(a)
		s.put(shard0, "BASE", 10)
		time.Sleep(2 * time.Second)
		said := Pause{Paused: true, By: "ada", Reason: "the topic is rebuilt", At: time.Now()}
		w.say(said, nil)
		time.Sleep(2 * time.Second)
		start(b)
		s.put(shard0, "BASE", 7)
		time.Sleep(30 * time.Second)
		st, err := a.Status(), a.Ready()
		if st.State != "paused" || !errors.Is(err, ErrPaused) {
			t.Fatalf("%+v, ready: %v", st, err)
		}
		for _, want := range []string{"ada", "the topic is rebuilt", "cellog tail resume c1", said.At.UTC().Format(time.RFC3339)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: no %q", err, want)
			}
		}
		if st.Lag < 25*time.Second || st.LagCells != 7 {
			t.Errorf("lag %s, %d cells", st.Lag, st.LagCells)
		}
		if n := k.published(t, shard0); n != 10 {
			t.Errorf("%d published", n)
		}
		if b.Status().State != "standing-by" || b.Ready() != nil || k.now().TailerMark != a.cfg.Mark {
			t.Errorf("the other tailer is %s, the mark is %s", b.Status().State, k.now().TailerMark)
		}
		// Nobody can tell any more, or a server that lags tells what was before:
		// what is known stands.
		w.say(Pause{}, errors.New("no answer"))
		time.Sleep(5 * time.Second)
		w.say(Pause{At: said.At.Add(-time.Hour)}, nil)
		time.Sleep(5 * time.Second)
		if st := a.Status(); st.State != "paused" {
			t.Fatalf("%+v", st)
		}
		// A restart changes nothing.
		w.say(said, nil)
		mustStop(t, a)
		if k.now().TailerMark == a.cfg.Mark {
			t.Error("a paused tailer that stopped cleanly left its mark")
		}
		time.Sleep(30 * time.Second)
		if st := b.Status(); st.State != "paused" || k.published(t, shard0) != 10 {
			t.Fatalf("after a restart: %+v", st)
		}
		w.say(Pause{By: "ada", At: time.Now()}, nil)
		time.Sleep(3 * time.Second)
		if st := b.Status(); st.State != "streaming" || b.Ready() != nil || st.LagCells != 0 || st.Lag > 2*time.Second || k.published(t, shard0) != 17 {
			t.Errorf("%+v, ready: %v", st, b.Ready())
		}
		mustStop(t, b)
	})
}

// A paused tailer that is fenced, as by a promotion, gives way.
func TestPausedTailerCanBePromotedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		var w word
		w.say(Pause{Paused: true, By: "ada", At: time.Now()}, nil)
		tl := newFakeTailer(t, k, s, func(c *Config) { c.Paused = w.ask })
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		k.claim(2)
		time.Sleep(3 * time.Second)
		if st := tl.Status(); st.State != "waiting" || !errors.Is(st.Err, ErrNotOpened) {
			t.Errorf("under a claim: %+v", st)
		}
		k.open("n1", true, nil)
		s.put(shard0, "BASE", 3)
		time.Sleep(3 * time.Second)
		if st := tl.Status(); st.State != "paused" || k.published(t, shard0) != 0 {
			t.Errorf("after the promotion: %+v", st)
		}
		w.say(Pause{At: time.Now()}, nil)
		time.Sleep(3 * time.Second)
		if k.published(t, shard0) != 3 {
			t.Errorf("%d published", k.published(t, shard0))
		}
		mustStop(t, tl)
	})
}

// The lag is true before the first heartbeat, too, and a tailer that stands by
// has none.
func TestLagIsTrueWhileNothingFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		var mu sync.Mutex
		var away error
		say := func(err error) { mu.Lock(); defer mu.Unlock(); away = err }
		say(errors.New("no server answers"))
		a := newFakeTailer(t, k, s, func(c *Config) {
			c.Heads = s.Heads
			c.Nodes = func(context.Context) ([]Node, error) {
				mu.Lock()
				defer mu.Unlock()
				return []Node{{Name: "n1", Source: s, Entities: s}}, away
			}
		})
		// One shard is another cluster's: its cells are not this one's to publish.
		k.shards[shard1] = position.Shard{Owner: "c2"}
		s.put(shard0, "BASE", 4)
		s.put(shard1, "BASE", 5)
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if st := a.Status(); st.Lag < 50*time.Second || st.LagCells != 4 || a.Ready() == nil {
			t.Errorf("nothing can be read: %+v", st)
		}
		b := newFakeTailer(t, k, s, func(c *Config) { c.Heads = s.Heads })
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		say(nil)
		time.Sleep(time.Minute)
		for _, tl := range []*Tailer{a, b} {
			if st := tl.Status(); st.Lag > 2*time.Second || st.LagCells != 0 || tl.Ready() != nil {
				t.Errorf("idle: %+v, ready: %v", st, tl.Ready())
			}
		}
		if sa, sb := a.Status().State, b.Status().State; (sa == "standing-by") == (sb == "standing-by") {
			t.Errorf("the two are %s and %s", sa, sb)
		}
		mustStop(t, a)
		mustStop(t, b)
	})
}

// A node that shows nothing of what the master writes is left for another.
func TestSilentNodeIsLeftForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, master := newFakeKafka(), newFakeServer()
		master.put(shard0, "BASE", 3)
		deaf := master.replica(3) // gets nothing more
		var tailed []string
		tl := newFakeTailer(t, k, master, func(c *Config) {
			c.Nodes = func(context.Context) ([]Node, error) {
				return []Node{{Name: "deaf", Source: deaf, Entities: deaf}, {Name: "well", Source: master, Entities: master}}, nil
			}
		})
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		look := func(after time.Duration) {
			time.Sleep(after)
			tailed = append(tailed, tl.Status().Node)
		}
		look(10 * time.Second)
		master.put(shard0, "BASE", 3)
		if lag := tl.Status().Lag; tl.Ready() == nil || lag < 5*time.Second {
			t.Errorf("ready on a node that replicates no more, lag %s", lag)
		}
		look(15 * time.Second)
		if err := tl.Ready(); err != nil || k.published(t, shard0) != 6 {
			t.Errorf("%d published, ready: %v", k.published(t, shard0), err)
		}
		look(time.Minute)
		if want := "deaf well well"; strings.Join(tailed, " ") != want {
			t.Errorf("tailed %v, want %s", tailed, want)
		}
		// Nobody can write heartbeats: then silence says nothing about the node.
		mustStop(t, tl)
		opens := k.opens()
		idle := newFakeTailer(t, k, master, func(c *Config) {
			c.Beat = func(context.Context, string, int64, time.Time) error { return errors.New("read only") }
		})
		if err := idle.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if n := k.opens() - opens; n != 1 {
			t.Errorf("%d sessions without a heartbeat", n)
		}
		mustStop(t, idle)
	})
}
