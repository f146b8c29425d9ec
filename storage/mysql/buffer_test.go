package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// newClusters makes a datastore with one shard, on the first of several
// clusters, and a store over all of them.
func newClusters(t testing.TB, sets ...[]*mysqltest.Node) *bundle {
	t.Helper()
	ds := fmt.Sprintf("t%d", serial.Add(1))
	var admin, worker []storage.Cluster
	for i, nodes := range sets {
		a, w := clusterOf(mysqltest.Accounts.Admin, nodes[0]), clusterOf(mysqltest.Accounts.Worker, nodes...)
		a.Name, w.Name = fmt.Sprint("c", i), fmt.Sprint("c", i)
		admin, worker = append(admin, a), append(worker, w)
	}
	if err := CreateDatastore(t.Context(), CreateConfig{Name: ds, Shards: 1, Clusters: admin, Grant: grant}); err != nil {
		t.Fatal(err)
	}
	marks := &testMarks{changed: make(chan struct{})}
	st, err := New(Config{Clusters: worker, Marks: marks, RefreshEvery: 50 * time.Millisecond, DialTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &bundle{Store: st, ds: ds, marks: marks}
}

// testMarks is one mark for all shards, which a test moves.
type testMarks struct {
	mu      sync.Mutex
	mark    storage.Mark
	known   bool
	changed chan struct{}
}

func (m *testMarks) Mark(string, cellog.ShardID) (storage.Mark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mark, m.known
}

func (m *testMarks) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *testMarks) set(mark storage.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark, m.known = mark, true
	close(m.changed)
	m.changed = make(chan struct{})
}

func copiesOn(t *testing.T, n *mysqltest.Node, table, ds string) string {
	t.Helper()
	return n.Query(t, "SELECT COUNT(*) FROM cellog_buffer."+table+" WHERE datastore = ?", ds)
}

// until polls until the store's looks have caught up with what was done.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("after 30 s still not: %s", what)
		}
	}
}

func (b *bundle) sees(cluster int, writable bool) func() bool {
	return func() bool {
		n := b.clusters[cluster].nodes[0]
		n.mu.Lock()
		defer n.mu.Unlock()
		return (n.seen && n.writable) == writable
	}
}

// While a shard's primary is dead its cells are kept on two other machines;
// then they go in, once, and a copy is deleted only when its cell is final.
// What has lost to another body meanwhile is rejected, with the winner's name.
func TestBufferAndDrain(t *testing.T) {
	primary, b1, b2 := mysqltest.Start(t), mysqltest.Start(t), mysqltest.Start(t)
	st := newClusters(t, []*mysqltest.Node{primary}, []*mysqltest.Node{b1}, []*mysqltest.Node{b2})
	d := NewDrainer(st.Store)
	once := func() {
		t.Helper()
		if err := d.Once(t.Context()); err != nil {
			t.Error(err)
		}
	}
	copies := func(table, want string) {
		t.Helper()
		for i, n := range []*mysqltest.Node{b1, b2} {
			if got := copiesOn(t, n, table, st.ds); got != want {
				t.Errorf("%s of b%d: %s rows, want %s", table, i+1, got, want)
			}
		}
	}
	puts := make([]cellog.Put, 3)
	for i := range puts {
		puts[i] = cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: cellog.RefKey(i)}, Body: mustBody(t, fmt.Sprint(i))}
	}
	puts[1].TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

	primary.Kill()
	<-primary.Done()
	until(t, "the primary is seen dead", st.sees(0, false))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, errs := st.Write(ctx, st.ds, 0, puts); !errors.Is(errs[0], storage.ErrUnavailable) {
		t.Fatalf("write to a dead primary: %v", errs[0])
	}
	if err := st.Buffer(t.Context(), st.ds, 0, puts); err != nil {
		t.Fatal(err)
	}
	once() // nothing can go in
	copies("buffered_cells", "3")

	primary.Restart(t)
	primary.Exec(t, "SET GLOBAL read_only = OFF")
	until(t, "the primary is seen back", st.sees(0, true))
	other := puts[2]
	other.Body = mustBody(t, `"another body"`)
	until(t, "the breaker is closed and the other body stored", func() bool {
		stored, errs := st.Write(t.Context(), st.ds, 0, []cellog.Put{other})
		if errs[0] == nil && stored[0].Outcome != cellog.Created {
			t.Fatalf("%v", stored[0])
		}
		return errs[0] == nil
	})
	counts, err := st.Buffered(t.Context(), st.ds)
	if err != nil || len(counts) != 2 || counts[0].Cells != 3 || counts[1].Cells != 3 || time.Since(counts[0].Oldest).Abs() > time.Hour {
		t.Errorf("%+v %v", counts, err)
	}
	if s, err := st.State(t.Context(), st.ds, puts[0].Key); err != nil || s.State != cellog.StateBuffered {
		t.Errorf("before the drain: %+v %v", s, err)
	}
	once() // final is not known
	copies("buffered_cells", "3")
	for i, p := range puts {
		c, _, err := st.Version(t.Context(), st.ds, p.Key, cellog.Master)
		if err != nil || string(c.Body) != string(p.Body) != (i == 2) || c.TraceParent != p.TraceParent {
			t.Errorf("cell %d: %+v %v", i, c, err)
		}
	}
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 2}) // of 1: the other body, 2 and 3: the copies
	once()
	copies("buffered_cells", "1")
	copies("rejected_cells", "1")
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 3})
	once()
	copies("buffered_cells", "0")
	once()
	copies("rejected_cells", "1")
	s, err := st.State(t.Context(), st.ds, puts[2].Key)
	if err != nil || s.State != cellog.StateStored || len(s.Rejected) != 2 || s.Rejected[0].Reason != "conflict" || s.Rejected[0].WinnerAddedID != 1 {
		t.Errorf("the one that lost: %+v %v", s, err)
	}
	if got := b1.Query(t, "SELECT winner_body = ? FROM cellog_buffer.rejected_cells WHERE datastore = ?", other.Body, st.ds); got != "1" {
		t.Errorf("the winner's body is not with the loser's")
	}
	seen := 0
	for after, more := "", true; more; {
		var page []cellog.RejectedCell
		if page, after, more, err = st.Rejected(t.Context(), st.ds, after, 1); err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			seen++
			if r.Key != puts[2].Key || string(r.Body) != string(puts[2].Body) || string(r.WinnerBody) != string(other.Body) || r.WinnerAddedID != 1 || r.Cluster == "c0" {
				t.Errorf("%+v", r)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d rejected cells listed, want one on each holder", seen)
	}
	if _, _, _, err := st.Rejected(t.Context(), st.ds, "x", 1); !errors.Is(err, storage.ErrBadPlace) {
		t.Errorf("a bad place: %v", err)
	}
	if len(d.answered) != 0 {
		t.Errorf("%d copies kept in mind", len(d.answered))
	}
	if last := primary.Query(t, "SELECT last_added_id FROM "+quote(st.ds, 0)+".shard_log"); last != "3" {
		t.Errorf("last_added_id %s, want 3: each once", last)
	}
}

// More copies than one look and one page hold go in, each once, and none is
// left. While the primary is away they stay, and their bodies are not read.
func TestDrainManyCopies(t *testing.T) {
	primary, b1, b2 := mysqltest.Start(t), mysqltest.Start(t), mysqltest.Start(t)
	st := newClusters(t, []*mysqltest.Node{primary}, []*mysqltest.Node{b1}, []*mysqltest.Node{b2})
	const n = drainIDs + 1
	var batch []cellog.Put
	for i := range n {
		batch = append(batch, cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: cellog.RefKey(i)}, Body: mustBody(t, fmt.Sprint(i))})
		if len(batch) == 1000 || i == n-1 {
			if err := st.Buffer(t.Context(), st.ds, 0, batch); err != nil {
				t.Fatal(err)
			}
			batch = nil
		}
	}
	d := NewDrainer(st.Store)
	once := func() {
		t.Helper()
		if err := d.Once(t.Context()); err != nil {
			t.Error(err)
		}
	}
	primary.Exec(t, "SET GLOBAL read_only = ON")
	until(t, "the primary is seen away", st.sees(0, false))
	once()
	if got := copiesOn(t, b1, "buffered_cells", st.ds); got != fmt.Sprint(n) || len(d.answered) != 0 {
		t.Errorf("%s copies, %d put, while the primary is away", got, len(d.answered))
	}
	primary.Exec(t, "SET GLOBAL read_only = OFF")
	until(t, "the primary is seen back", st.sees(0, true))
	once()
	if len(d.answered) != 2*n {
		t.Errorf("%d copies put, want %d on each of two holders", len(d.answered), n)
	}
	if rows := checkDense(t, primary.DB(t, ""), st.ds, 0); rows != n {
		t.Errorf("%d rows, want %d", rows, n)
	}
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: n})
	once()
	for _, b := range []*mysqltest.Node{b1, b2} {
		if got := copiesOn(t, b, "buffered_cells", st.ds); got != "0" {
			t.Errorf("%s copies are left", got)
		}
	}
}

// With one other cluster the second copy is its minion's, which must have
// applied it.
func TestBufferOnAMinion(t *testing.T) {
	primary, other := mysqltest.Start(t), mysqltest.Cluster(t, 1)
	st := newClusters(t, []*mysqltest.Node{primary}, []*mysqltest.Node{other.Master, other.Minions[0]})
	put := []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}}
	primary.Kill()
	<-primary.Done()
	if err := st.Buffer(t.Context(), st.ds, 0, put); err != nil {
		t.Fatal(err)
	}
	if got := copiesOn(t, other.Minions[0], "buffered_cells", st.ds); got != "1" {
		t.Errorf("the minion has %s copies, want 1", got)
	}
	stop, start := "STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD"
	if mysqltest.Flavour() == "mariadb" {
		stop, start = "STOP SLAVE SQL_THREAD", "START SLAVE SQL_THREAD"
	}
	other.Minions[0].Exec(t, stop)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := st.Buffer(ctx, st.ds, 0, put); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("a minion that does not apply: %v", err)
	}
	other.Minions[0].Exec(t, start)
	if err := st.Buffer(t.Context(), st.ds, 0, put); err != nil {
		t.Errorf("a minion that applies again: %v", err)
	}
}

// One other machine is no use, and then nothing is sent to it.
func TestNoTwoMachines(t *testing.T) {
	primary, other := mysqltest.Start(t), mysqltest.Start(t)
	st := newClusters(t, []*mysqltest.Node{primary}, []*mysqltest.Node{other})
	put := []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}}
	if err := st.Buffer(t.Context(), st.ds, 0, put); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if got := copiesOn(t, other, "buffered_cells", st.ds); got != "0" {
		t.Errorf("%s copies", got)
	}
	if err := st.Buffer(t.Context(), "other", 0, put); err == nil {
		t.Error("unknown datastore: buffered")
	}
}

// A cluster that took no writes when it was looked at holds copies from the
// moment on in which some put finds that it does again, and until then it is
// looked at more often.
func TestHoldersAreKnownOnceTheyTakeWrites(t *testing.T) {
	primary, b1, b2 := mysqltest.Start(t), mysqltest.Start(t), mysqltest.Start(t)
	first := newClusters(t, []*mysqltest.Node{primary}, []*mysqltest.Node{b1}, []*mysqltest.Node{b2})
	b1.Exec(t, "SET GLOBAL read_only = 1")
	b2.Exec(t, "SET GLOBAL read_only = 1")
	cfg := first.cfg
	cfg.RefreshEvery = time.Hour
	st, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := st.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, why := st.holders("c0")
	if len(why) != 2 || st.clusters[0].ails() || !st.clusters[1].ails() || !st.clusters[2].ails() {
		t.Errorf("no cluster but c0 takes writes: %v", why)
	}
	put := []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE"}, Body: mustBody(t, `{}`)}}
	if err := st.Buffer(t.Context(), first.ds, 0, put); !errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), "c1 took no writes") {
		t.Errorf("kept without a holder: %v", err)
	}
	b1.Exec(t, "SET GLOBAL read_only = 0")
	b2.Exec(t, "SET GLOBAL read_only = 0")
	st.lookFor(t.Context(), first.ds, 0)
	if st.clusters[1].ails() || st.clusters[2].ails() {
		t.Error("they take writes")
	}
	if err := st.Buffer(t.Context(), first.ds, 0, put); err != nil {
		t.Error(err)
	}
}
