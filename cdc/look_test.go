package cdc

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A transaction of which the end has not come yet holds the heartbeats up:
// readiness fails, says why, and comes back; another tailer stands by.
func TestReadinessWhileABigTransactionIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		var big atomic.Bool
		change := func(c *Config) {
			c.Beat = func(ctx context.Context, cluster string, beat int64, at time.Time) error {
				if !big.Load() {
					return s.beat(ctx, cluster, beat, at)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.add(&Transaction{Reading: 5 << 20})
				return nil
			}
		}
		tl, second := newFakeTailer(t, k, s, change), newFakeTailer(t, k, s, change)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if err := second.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		big.Store(true)
		time.Sleep(time.Minute)
		if err := tl.Ready(); err == nil || !strings.Contains(err.Error(), "is being read, 5 MiB so far") {
			t.Errorf("ready: %v", err)
		}
		if lag := tl.Status().Lag; lag < 50*time.Second {
			t.Errorf("lag %s", lag)
		}
		if st := second.Status(); st.State != "standing-by" || k.opens() != 1 {
			t.Errorf("the second is %s, and there were %d sessions", st.State, k.opens())
		}
		big.Store(false)
		time.Sleep(3 * time.Second)
		if err := tl.Ready(); err != nil || tl.Status().Reading != 0 {
			t.Errorf("reading %d, ready: %v", tl.Status().Reading, err)
		}
		mustStop(t, second)
		mustStop(t, tl)
	})
}

// Cells that the binlog does not show are found by comparing heads: at the start
// at once, then each LookEvery, and half a second after a statement.
func TestLooksFindWhatTheBinlogDoesNotShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		key := ShardKey{"trips", 0}
		s.put(key, "BASE", 1)
		unseen := func() {
			s.put(key, "BASE", 1)
			s.mu.Lock()
			s.binlog[len(s.binlog)-1].Changes = nil
			s.mu.Unlock()
		}
		tl := newFakeTailer(t, k, s, nil)
		start := func() {
			t.Helper()
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Second)
		}
		want := func(n int) {
			t.Helper()
			if got := k.published(t, key); got != n {
				t.Errorf("%d cells are published, want %d", got, n)
			}
		}
		start()
		want(1)
		mustStop(t, tl)
		unseen()
		start()
		want(2)
		unseen()
		time.Sleep(30 * time.Second)
		want(2)
		time.Sleep(40 * time.Second)
		want(3)
		unseen()
		s.mu.Lock()
		s.add(&Transaction{Statement: true})
		s.mu.Unlock()
		time.Sleep(3 * time.Second)
		want(4)
		mustStop(t, tl)
	})
}
