package cdc

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellog/cellog/schemas/position"
)

// A merged topic that is switched on late, or on again, gets what it lacks
// before anything new, whatever goes wrong meanwhile.
func TestMergedTopicCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		on, off := func(string) bool { return true }, func(string) bool { return false }
		put := func() {
			for range 3 * pageRows / 10 {
				s.put(shard0, "BASE", 3)
				s.put(shard0, "STATUS", 7)
				s.put(shard1, "BASE", 1)
			}
		}
		run := func(merged func(string) bool) {
			t.Helper()
			tl := newFakeTailer(t, k, s, func(c *Config) { c.Merged, c.MaxTransactionCells = merged, pageRows })
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
			if st := tl.Status(); st.State != "streaming" || len(st.Stopped) > 0 {
				t.Fatalf("%+v", st)
			}
			put()
			time.Sleep(time.Second)
			mustStop(t, tl)
		}
		check := func(key ShardKey, cells, merged int) {
			t.Helper()
			if n, m := k.published(t, key), k.publishedMerged(t, key); n != cells || m != merged {
				t.Errorf("%s: %d cells and %d merged, want %d and %d", key, n, m, cells, merged)
			}
		}
		const each = 3 * pageRows // of shard 0, a tenth of it of shard 1
		put()
		run(off)
		check(shard0, 2*each, 0)
		check(shard1, 2*each/10, 0)
		// Every fourth call fails, so that no session gets through it all.
		calls := 0
		k.fail = func(op string) error {
			if calls++; op != "send" && calls%4 == 0 && k.publishedLocked() < 2*each {
				return errors.New("the broker is away")
			}
			return nil
		}
		run(on)
		check(shard0, 3*each, 3*each)
		check(shard1, 3*each/10, 3*each/10)
		k.fail = nil
		run(off)
		check(shard0, 4*each, 3*each)
		run(on)
		check(shard0, 5*each, 5*each)
		check(shard1, 5*each/10, 5*each/10)
		if at := k.shards[shard0].Columns[position.Merged]; at.AddedID != 5*each {
			t.Errorf("%+v", at)
		}
	})
}

// publishedLocked is how many merged records there are, for fail, which is
// called under the lock.
func (k *fakeKafka) publishedLocked() (n int) {
	for _, cells := range k.merged {
		n += len(cells)
	}
	return n
}

// What cannot be caught up with stops its shard alone.
func TestMergedTopicOfADamagedShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		s.put(shard0, "BASE", 5)
		s.put(shard1, "BASE", 5)
		tl := newFakeTailer(t, k, s, nil)
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		mustStop(t, tl)
		s.rows[shard0][2].Body = []byte("x")
		tl = newFakeTailer(t, k, s, func(c *Config) { c.Merged = func(string) bool { return true } })
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		s.put(shard1, "BASE", 1)
		time.Sleep(time.Second)
		st := tl.Status()
		if err := st.Stopped[shard0]; len(st.Stopped) != 1 || !errors.Is(err, ErrShard) || !strings.Contains(err.Error(), "added_id 3") {
			t.Errorf("%+v", st)
		}
		if n := k.publishedMerged(t, shard1); n != 6 {
			t.Errorf("%d merged records of the other shard", n)
		}
		mustStop(t, tl)
	})
}
