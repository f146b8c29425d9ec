package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// newCopying makes a datastore with one shard on the first of three clusters
// whose puts wait for a copy on another one.
func newCopying(t testing.TB, nodes ...*mysqltest.Node) *bundle {
	t.Helper()
	var sets [][]*mysqltest.Node
	for _, n := range nodes {
		sets = append(sets, []*mysqltest.Node{n})
	}
	st := newClusters(t, sets...)
	st.cfg.Ack = func(string) storage.Ack { return storage.AckCopy }
	for i := range nodes {
		permit(t, st, nodes, i, 1, "open")
	}
	return st
}

// permit tells node i about term term of its own cluster, and, of the others,
// what was told before.
func permit(t testing.TB, st *bundle, nodes []*mysqltest.Node, i int, term cellog.Term, state string) {
	t.Helper()
	var own string
	var version string
	db := nodes[i].DB(t, "")
	if err := db.QueryRow("SELECT VERSION()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow("SELECT " + selfName(version)).Scan(&own); err != nil {
		t.Fatal(err)
	}
	var records []TermRecord
	for j := range nodes {
		r := TermRecord{Cluster: fmt.Sprint("c", j), Term: 1, State: "open"}
		if i == j {
			r.Term, r.State, r.ServerUUID = term, state, own
		}
		records = append(records, r)
	}
	if err := LoadTerms(t.Context(), db, records); err != nil {
		t.Fatal(err)
	}
}

// numberedOn returns how many cells a server has numbered copies of.
func numberedOn(t testing.TB, n *mysqltest.Node, ds string) string {
	t.Helper()
	return n.Query(t, "SELECT COALESCE(SUM(last_id - first_id + 1), 0) FROM cellog_buffer.numbered_copies WHERE datastore = ?", ds)
}

// cellsOn returns the cells of which a server has numbered copies, of shard 0.
func cellsOn(t testing.TB, n *mysqltest.Node, ds string) []cellog.Cell {
	t.Helper()
	db := n.DB(t, "")
	refs, err := CopyRefs(t.Context(), []*sql.DB{db}, "c0", ds, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []cellog.Cell
	for _, r := range refs {
		runs, err := readRuns(t.Context(), "c0", ds, 0, []CopyRef{r})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, runs[0]...)
	}
	return out
}

func somePuts(t testing.TB, n int) []cellog.Put {
	puts := make([]cellog.Put, n)
	for i := range puts {
		puts[i] = cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: cellog.RefKey(i)}, Body: mustBody(t, fmt.Sprint(i))}
	}
	return puts
}

// A put is answered once another cluster's master has a numbered copy of its
// cell; the copy goes when the cell is final, and not before. A cell that stood
// there already gets its copy too before it is answered 200 or 409.
func TestNumberedCopies(t *testing.T) {
	primary, holder := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, holder)
	puts := somePuts(t, 3)
	puts[1].TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	stored, errs := st.Write(t.Context(), st.ds, 0, puts)
	for i, err := range errs {
		if err != nil || stored[i].Outcome != cellog.Created {
			t.Fatalf("%v %v", stored[i], err)
		}
	}
	if got := holder.Query(t, "SELECT CONCAT(cluster, ' ', term, ' ', COUNT(*)) FROM cellog_buffer.numbered_copies WHERE datastore = ? GROUP BY cluster, term", st.ds); got != "c0 1 1" {
		t.Errorf("rows of copies: %s, want one of cluster c0 and term 1 for all that was stored together", got)
	}
	var want []cellog.Cell
	for i, p := range puts {
		want = append(want, cellog.Cell{Key: p.Key, Body: p.Body, TraceParent: p.TraceParent, Epoch: 1, AddedID: stored[i].AddedID, CreatedAt: stored[i].CreatedAt.UTC()})
	}
	if got := cellsOn(t, holder, st.ds); !reflect.DeepEqual(got, want) {
		t.Errorf("copies %v, want %v", got, want)
	}
	d := NewDrainer(st.Store)
	once := func() {
		t.Helper()
		if err := d.Once(t.Context()); err != nil {
			t.Error(err)
		}
	}
	once() // nothing is known to be final
	if got := numberedOn(t, holder, st.ds); got != "3" {
		t.Errorf("%s copies are left of cells that are not final", got)
	}
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 2})
	once()
	if got := numberedOn(t, holder, st.ds); got != "3" {
		t.Errorf("%s copies are left of a run of which the last cell is not final", got)
	}
	holder.Exec(t, "DELETE FROM cellog_buffer.numbered_copies WHERE datastore = '"+st.ds+"'")
	other := puts[2]
	other.Body = mustBody(t, `"another"`)
	stored, errs = st.Write(t.Context(), st.ds, 0, []cellog.Put{puts[0], puts[2], other})
	for i, want := range []cellog.Outcome{cellog.Same, cellog.Same, cellog.Conflict} {
		if errs[i] != nil || stored[i].Outcome != want {
			t.Errorf("%v %v, want %v", stored[i], errs[i], want)
		}
	}
	if got := cellsOn(t, holder, st.ds); !reflect.DeepEqual(got, want[2:]) {
		t.Errorf("copies of what stood and is not final: %v, want %v", got, want[2:])
	}
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 3})
	once()
	if got := numberedOn(t, holder, st.ds); got != "0" {
		t.Errorf("%s copies are left", got)
	}
}

// Without a holder a put waits until its cell is final; past its time its
// outcome is unknown.
func TestNoHolder(t *testing.T) {
	primary, holder := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, holder)
	holder.Exec(t, "SET GLOBAL read_only = ON")
	until(t, "the holder is seen read-only", st.sees(1, false))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	puts := somePuts(t, 2)
	if _, errs := st.Write(ctx, st.ds, 0, puts[:1]); !errors.Is(errs[0], storage.ErrOutcomeUnknown) {
		t.Errorf("without a copy: %v", errs[0])
	}
	done := make(chan error)
	go func() {
		_, errs := st.Write(t.Context(), st.ds, 0, puts[1:])
		done <- errs[0]
	}()
	until(t, "the cell is on the primary", func() bool {
		return primary.Query(t, "SELECT COUNT(*) FROM "+quote(st.ds, 0)+".entity") == "2"
	})
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 1})
	select {
	case err := <-done:
		t.Fatalf("answered before the cell was final: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 2})
	if err := <-done; err != nil {
		t.Errorf("final: %v", err)
	}
}

// With ack final no copy is made, and the answer comes when the cell is final.
func TestAckFinal(t *testing.T) {
	primary, holder := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, holder)
	st.cfg.Ack = func(string) storage.Ack { return storage.AckFinal }
	done := make(chan error)
	go func() {
		_, errs := st.Write(t.Context(), st.ds, 0, somePuts(t, 1))
		done <- errs[0]
	}()
	until(t, "the cell is on the primary", func() bool {
		return primary.Query(t, "SELECT COUNT(*) FROM "+quote(st.ds, 0)+".entity") == "1"
	})
	st.marks.set(storage.Mark{})
	select {
	case err := <-done:
		t.Fatalf("answered before the cell was final: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	st.marks.set(storage.Mark{Epoch: 1, First: 1, Last: 1})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := numberedOn(t, holder, st.ds); got != "0" {
		t.Errorf("%s copies", got)
	}
	// A primary that was deposed: what it has is final nowhere.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	st.marks.set(storage.Mark{Epoch: 2, First: 2, Last: 9})
	if _, errs := st.Write(ctx, st.ds, 0, somePuts(t, 1)); !errors.Is(errs[0], storage.ErrOutcomeUnknown) {
		t.Errorf("under an older epoch than Kafka names: %v", errs[0])
	}
}

// A claim on the holder makes it refuse copies of older terms, and on the
// primary makes it refuse the holder that it knew.
func TestTermsFence(t *testing.T) {
	primary, h1, h2 := mysqltest.Start(t), mysqltest.Start(t), mysqltest.Start(t)
	nodes := []*mysqltest.Node{primary, h1, h2}
	st := newCopying(t, nodes...)
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, errs := st.Write(ctx, st.ds, 0, somePuts(t, 1))
		return errs[0]
	}
	claim := func(on *mysqltest.Node, r TermRecord) {
		t.Helper()
		if err := LoadTerms(t.Context(), on.DB(t, ""), []TermRecord{r}); err != nil {
			t.Fatal(err)
		}
	}
	// c1 is claimed: the primary hears of it, so c1's old master is no holder.
	claim(primary, TermRecord{Cluster: "c1", Term: 2, State: "claimed"})
	for range 10 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	if got := numberedOn(t, h1, st.ds); got != "0" {
		t.Errorf("%s copies on the old master of a cluster that is claimed", got)
	}
	// Opened again it is one.
	permit(t, st, nodes, 1, 2, "open")
	h2.Exec(t, "SET GLOBAL read_only = ON")
	until(t, "c2 is seen read-only", st.sees(2, false))
	if err := write(); err != nil {
		t.Error(err)
	}
	if got := numberedOn(t, h1, st.ds); got != "1" {
		t.Errorf("%s copies on the node that was opened", got)
	}
	// Claimed it is none, whatever else fits.
	h1.Exec(t, "UPDATE cellog_meta.terms SET state = 'claimed' WHERE cluster = 'c1'")
	if err := write(); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("a server whose own term is only claimed: %v", err)
	}
	h1.Exec(t, "UPDATE cellog_meta.terms SET state = 'open' WHERE cluster = 'c1'")
	// A replica has the same rows, but is another server.
	h1.Exec(t, "UPDATE cellog_meta.terms SET server_uuid = 'another' WHERE cluster = 'c1'")
	if err := write(); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("a server without permission: %v", err)
	}
	permit(t, st, nodes, 1, 3, "open")
	until(t, "c1 is seen to be opened", st.sees(1, true))
	claim(primary, TermRecord{Cluster: "c1", Term: 3, State: "open"})
	if err := write(); err != nil {
		t.Error(err)
	}
	// The cell's own cluster is claimed: its old master can earn nothing more.
	claim(h1, TermRecord{Cluster: "c0", Term: 2, State: "claimed"})
	if err := write(); !errors.Is(err, storage.ErrOutcomeUnknown) || !errors.Is(err, errNewTerm) {
		t.Errorf("after a claim: %v", err)
	}
}

// A claim waits for writes in flight, and a copy for a claim in flight: so each
// write is either seen by the claimant or refused. Here writers and claims run
// against each other, and no acknowledged cell is without a copy that was there
// before the claim was committed.
func TestClaimAgainstCopies(t *testing.T) {
	primary, holder := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, holder)
	var mu sync.Mutex
	acked := map[string]bool{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				p := somePuts(t, 1)
				_, errs := st.Write(ctx, st.ds, 0, p)
				cancel()
				if errs[0] == nil {
					mu.Lock()
					acked[p[0].Row.String()] = true
					mu.Unlock()
				} else if errors.Is(errs[0], errNewTerm) {
					return
				}
			}
		})
	}
	until(t, "a hundred cells", func() bool { mu.Lock(); defer mu.Unlock(); return len(acked) > 100 })
	db := holder.DB(t, "")
	if err := LoadTerms(t.Context(), db, []TermRecord{{Cluster: "c0", Term: 2, State: "claimed"}}); err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, c := range cellsOn(t, holder, st.ds) {
		there[c.Row.String()] = true
	}
	met := make(chan struct{})
	go func() { wg.Wait(); close(met) }()
	select {
	case <-met:
	case <-time.After(10 * time.Second):
		t.Error("writers earn answers after the claim")
	}
	close(stop)
	<-met
	for id := range acked {
		if !there[id] {
			t.Errorf("cell %s was acknowledged, but its copy was not there at the claim", id)
		}
	}
	t.Logf("%d acknowledged", len(acked))
}

// Copies of an older epoch say nothing by their number: they are put, and go
// when the cell that answered is final under a primary that was not deposed.
func TestDrainOlderEpoch(t *testing.T) {
	primary, holder := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, holder)
	puts := somePuts(t, 2)
	if _, errs := st.Write(t.Context(), st.ds, 0, puts); errs[0] != nil {
		t.Fatal(errs[0])
	}
	// The shard is promoted without the second cell, which is found again.
	primary.Exec(t, "DELETE FROM "+quote(st.ds, 0)+".entity WHERE added_id = 2; UPDATE "+quote(st.ds, 0)+".shard_log SET epoch = 2, term = 2, last_added_id = 1, state = 'closed'")
	// Other cells have its numbers in epoch 2, and are final; it is not open yet.
	st.marks.set(storage.Mark{Epoch: 2, First: 1, Last: 2})
	d := NewDrainer(st.Store)
	if err := d.Once(t.Context()); err != nil {
		t.Error(err)
	}
	if got := numberedOn(t, holder, st.ds); got != "2" {
		t.Errorf("%s copies, want both: what is final is of another epoch", got)
	}
	primary.Exec(t, "UPDATE "+quote(st.ds, 0)+".shard_log SET state = 'open'")
	until(t, "the store sees epoch 2", func() bool { r, err := st.Route(st.ds, 0); return err == nil && r.Epoch == 2 })
	st.marks.set(storage.Mark{Epoch: 2, First: 2, Last: 1})
	if err := d.Once(t.Context()); err != nil {
		t.Error(err)
	}
	if got := primary.Query(t, "SELECT CONCAT(epoch, ' ', row_key = ?) FROM "+quote(st.ds, 0)+".entity WHERE added_id = 2", puts[1].Row[:]); got != "2 1" {
		t.Errorf("the second cell: %s", got)
	}
	if got := copiesOn(t, holder, "buffered_cells", st.ds); got != "1" || numberedOn(t, holder, st.ds) != "0" {
		t.Errorf("%s copies, want the one whose cell is not final", got)
	}
	st.marks.set(storage.Mark{Epoch: 2, First: 2, Last: 2})
	if err := d.Once(t.Context()); err != nil {
		t.Error(err)
	}
	if got := copiesOn(t, holder, "buffered_cells", st.ds); got != "0" || len(d.answered) != 0 {
		t.Errorf("%s copies, %d in mind", got, len(d.answered))
	}
}

// A put that was answered by a primary which was deposed before the cell was
// final says nothing: the number may be another cell's now.
func TestDrainThroughADeposedPrimary(t *testing.T) {
	primary, holder := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, holder)
	puts := somePuts(t, 1)
	if _, errs := st.Write(t.Context(), st.ds, 0, puts); errs[0] != nil {
		t.Fatal(errs[0])
	}
	d := NewDrainer(st.Store)
	if err := d.unnumber(t.Context(), st.clusters[1].nodes[0], placement{"c0", st.ds, 0}, 2); err != nil {
		t.Fatal(err)
	}
	once := func(m storage.Mark, copies string, answered int) {
		t.Helper()
		st.marks.set(m)
		if err := d.Once(t.Context()); err != nil {
			t.Error(err)
		}
		if got := copiesOn(t, holder, "buffered_cells", st.ds); got != copies || len(d.answered) != answered {
			t.Errorf("%+v: %s copies, %d answered, want %s and %d", m, got, len(d.answered), copies, answered)
		}
	}
	once(storage.Mark{Epoch: 1, First: 1, Last: 0}, "1", 1)
	// The promoted node has another cell as number 1, and that one is final.
	primary.Exec(t, "UPDATE "+quote(st.ds, 0)+".entity SET row_key = x'"+fmt.Sprintf("%032x", 7)+"'; UPDATE "+quote(st.ds, 0)+".shard_log SET epoch = 2, term = 2")
	once(storage.Mark{Epoch: 2, First: 1, Last: 1}, "1", 0)
	until(t, "the store sees epoch 2", func() bool { r, err := st.Route(st.ds, 0); return err == nil && r.Epoch == 2 })
	once(storage.Mark{Epoch: 2, First: 1, Last: 1}, "1", 1)
	once(storage.Mark{Epoch: 2, First: 1, Last: 2}, "0", 0)
}
