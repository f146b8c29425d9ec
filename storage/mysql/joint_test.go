package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

// metric returns what a registry has counted: a counter's value, or how often a
// histogram was observed.
func metric(t *testing.T, reg *prometheus.Registry, name string) int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return int(m.GetCounter().GetValue()) + int(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Many shards are written at a time, so that they share transactions, while
// keys repeat with the same and with other bodies, others hold shards' locks,
// and connections break before or after the server had the packet. Whatever a
// write answered must be true, and every log dense.
func TestSharedTransactionsAnswerTheTruth(t *testing.T) {
	const shards, writers, rounds = 8, 24, 40
	p := newProxy(t, mysqltest.Server(t).Addr())
	reg := prometheus.NewRegistry()
	st := newOpenStore(t, shards, func(c *Config) {
		c.Clusters[0].Nodes = []storage.Node{p.node()}
		c.RefreshEvery = time.Hour
		c.Registerer = reg
	})
	rnd := seed(t)
	var mu sync.Mutex
	broken := 0
	fault := func(chunk []byte) int {
		mu.Lock()
		defer mu.Unlock()
		if len(chunk) < 200 || rnd.IntN(20) > 0 {
			return 0
		}
		broken++
		return 1 + rnd.IntN(2)
	}
	type said struct {
		put    cellog.Put
		stored cellog.Stored
		err    error
	}
	answers := make([][]said, writers)
	seeds := make([]uint64, writers)
	for i := range seeds {
		seeds[i] = rnd.Uint64()
	}
	p.fault.Store(&fault)
	hold := func(shard int) { // its lock, as another worker would
		tx, err := st.db.Begin()
		if err == nil {
			_, err = tx.Exec("SELECT id FROM " + quote(st.ds, cellog.ShardID(shard)) + ".shard_log FOR UPDATE")
			err = errors.Join(err, tx.Rollback())
		}
		if err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			choose := rand.New(rand.NewPCG(seeds[w], uint64(w)))
			for i := range rounds {
				if choose.IntN(20) == 0 {
					hold(choose.IntN(shards))
				}
				shard := cellog.ShardID(choose.IntN(shards))
				var puts []cellog.Put
				for range 1 + choose.IntN(3) {
					k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}
					if choose.IntN(40) == 0 { // a key that others put too, maybe with another body
						k.Row = uuid.NewSHA1(uuid.Nil, fmt.Append(nil, shard, choose.IntN(20)))
					}
					puts = append(puts, cellog.Put{Key: k, Body: mustBody(t, fmt.Sprint(i%3))})
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				stored, errs := st.Write(ctx, st.ds, shard, puts)
				cancel()
				for j := range puts {
					answers[w] = append(answers[w], said{puts[j], stored[j], errs[j]})
				}
			}
		})
	}
	wg.Wait()
	p.fault.Store(nil)
	created, failed := map[cellog.Key]int{}, 0
	for _, a := range append([][]said(nil), answers...) {
		for _, a := range a {
			if a.err != nil {
				failed++
				continue
			}
			c, _, err := st.Version(t.Context(), st.ds, a.put.Key, cellog.Master)
			// Row keys are any here, so their shard is not that of the hash.
			if errors.Is(err, storage.ErrNotFound) {
				c, err = find(t, st, a.stored.Shard, a.stored.AddedID)
			}
			if err != nil {
				t.Fatalf("%v was answered %v: %v", a.put.Key, a.stored.Outcome, err)
			}
			equal, err := body.Equal(c.Body, a.put.Body)
			if err != nil {
				t.Fatal(err)
			}
			if c.Key != a.put.Key || c.AddedID != a.stored.AddedID || c.Epoch != a.stored.Epoch || !c.CreatedAt.Equal(a.stored.CreatedAt) || equal == (a.stored.Outcome == cellog.Conflict) {
				t.Errorf("%v was answered %+v, but there is %+v (equal %v)", a.put.Key, a.stored, c, equal)
			}
			if a.stored.Outcome == cellog.Created {
				created[a.put.Key]++
			}
		}
	}
	for k, n := range created {
		if n > 1 {
			t.Errorf("%v was created %d times", k, n)
		}
	}
	rows := int64(0)
	for s := range cellog.ShardID(shards) {
		rows += checkDense(t, st.db, st.ds, s)
	}
	joint, splits := metric(t, reg, "cellog_storage_joint_shards"), metric(t, reg, "cellog_storage_splits_total")
	t.Logf("%d rows, %d errors, %d broken connections, %d transactions of several shards, %d that were split", rows, failed, broken, joint, splits)
	if joint < 3 || splits < 3 || broken < 3 {
		t.Error("too little happened to show anything")
	}
}

// find reads a cell by its place.
func find(t *testing.T, st *bundle, shard cellog.ShardID, id cellog.AddedID) (cellog.Cell, error) {
	t.Helper()
	cells, err := ReadEntity(t.Context(), st.db, st.ds, shard, id-1, 1)
	if err == nil && len(cells) == 0 {
		err = storage.ErrNotFound
	}
	if err != nil {
		return cellog.Cell{}, err
	}
	return cells[0], nil
}

// Who waits goes along with the next who leads; after a failure each goes
// alone for a while, and who gives up is not waited for.
func TestLine(t *testing.T) {
	l := &line{}
	put := func() []cellog.Put { return []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE"}}} }
	leaders := make([]*passenger, together)
	for i := range leaders {
		leaders[i] = &passenger{take: put}
		if !l.enter(t.Context(), leaders[i]) {
			t.Fatal("no lead for the first ones")
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if l.enter(gone, &passenger{take: put}) {
		t.Fatal("more than the first ones lead at a time")
	}
	led := make(chan bool)
	const others = 5
	for range others {
		go func() { led <- l.enter(t.Context(), &passenger{take: put}) }()
	}
	waitFor(t, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.waiting) == others })
	l.gather(leaders[0])
	if n := len(leaders[0].group); n != others {
		t.Fatalf("%d of %d that wait go along", n, others)
	}
	for _, p := range leaders[0].group {
		if len(p.batch.puts) != 1 {
			t.Error("a passenger's puts were not taken")
		}
		p.wake <- false
		if <-led {
			t.Error("a passenger leads")
		}
	}
	l.joined(false)
	l.leave()
	alone := &passenger{take: put}
	if !l.enter(t.Context(), alone) {
		t.Fatal("no lead after one has left")
	}
	for range apart - together {
		if !l.enter(t.Context(), &passenger{take: put}) {
			t.Fatal("alone, more may write at a time")
		}
	}
	go func() { led <- l.enter(t.Context(), &passenger{take: put}) }()
	waitFor(t, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.waiting) == 1 })
	l.gather(alone)
	if len(alone.group) != 0 {
		t.Error("after a failure a write takes another along")
	}
	l.leave()
	if !<-led {
		t.Error("who waited does not lead")
	}
	for range apart {
		l.leave()
	}
	if l.running != 0 || len(l.waiting) != 0 {
		t.Errorf("%d run, %d wait", l.running, len(l.waiting))
	}
}

// A crowd that waits lets one more lead, who takes it along.
func TestLineOfACrowd(t *testing.T) {
	l := &line{}
	put := func() []cellog.Put { return nil }
	for range together {
		if !l.enter(t.Context(), &passenger{take: put}) {
			t.Fatal("no lead for the first ones")
		}
	}
	led := make(chan *passenger)
	for range crowd {
		go func() {
			p := &passenger{take: put}
			if !l.enter(t.Context(), p) {
				p = nil
			}
			led <- p
		}()
	}
	leader := <-led
	if leader == nil {
		t.Fatal("nobody of the crowd leads")
	}
	l.gather(leader)
	if n := len(leader.group); n != crowd-1 {
		t.Fatalf("%d of %d go along", n, crowd-1)
	}
	for _, p := range leader.group {
		p.wake <- false
		if p := <-led; p != nil {
			t.Error("a second one of the crowd leads")
		}
	}
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it has not come to be within 10 s")
		}
	}
}
