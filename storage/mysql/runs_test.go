package mysql

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// putRun has a server hold a run of copies of c0's cells first … first+n-1, cells
// being 1, 2, ….
func putRun(t *testing.T, n *mysqltest.Node, ds string, epoch cellog.Epoch, cells []cellog.Put, first, last int) {
	t.Helper()
	c := copyOf{owner: "c0", datastore: ds}
	for id := first; id <= last; id++ {
		c.cells = append(c.cells, standing{put: cells[id-1], at: cellog.Stored{AddedID: cellog.AddedID(id), Epoch: epoch},
			known: &known{term: 1, holders: map[string]cellog.Term{"c1": 1}}})
	}
	var own string
	if err := n.DB(t, "").QueryRow("SELECT server_uuid FROM cellog_meta.terms WHERE cluster = 'c1'").Scan(&own); err != nil {
		t.Fatal(err)
	}
	to := &node{Node: storage.Node{Name: "n0"}, cluster: "c1", write: n.DB(t, ""), self: "'" + own + "'"}
	if err := to.insertNumbered(t.Context(), demand{owner: "c0", term: 1, hold: 1}, []copyOf{c}); err != nil {
		t.Fatal(err)
	}
}

// Runs of several holders may overlap, for a cell that stands is copied again
// when it is put again. A promotion brings each cell in once, in the order of the
// log, whichever way they lie.
func TestAddOverlappingCopies(t *testing.T) {
	primary, h1, h2 := mysqltest.Start(t), mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, primary, h1, h2)
	permit(t, st, []*mysqltest.Node{primary, h2}, 1, 1, "open") // h2 stands for another node of c1
	puts := somePuts(t, 400)
	putRun(t, h1, st.ds, 1, puts, 3, 120)
	putRun(t, h1, st.ds, 1, puts, 5, 5)
	putRun(t, h2, st.ds, 1, puts, 2, 4)
	putRun(t, h2, st.ds, 1, puts, 100, 390)
	putRun(t, h2, st.ds, 1, puts, 100, 390)
	putRun(t, h1, st.ds, 1, puts, 400, 400)
	putRun(t, h1, st.ds, 1, puts, 1, 1)
	db := primary.DB(t, "")
	if _, err := CloseShards(t.Context(), db, []ShardHead{{Datastore: st.ds, Epoch: 1, Term: 1}}, 2); err != nil {
		t.Fatal(err)
	}
	refs, err := CopyRefs(t.Context(), []*sql.DB{h1.DB(t, ""), h2.DB(t, "")}, "c0", st.ds, 0)
	if err != nil || len(refs) != 5 {
		t.Fatalf("%d runs, want 5: %v", len(refs), err)
	}
	added, lost, err := AddCopies(t.Context(), db, "c0", st.ds, 0, 2, refs)
	if err != nil || added != 391 || lost != 0 {
		t.Fatalf("%d cells went in, %d were lost, want 391 and 0: %v", added, lost, err)
	}
	rows, err := db.Query("SELECT added_id, ref_key FROM " + quote(st.ds, 0) + ".entity ORDER BY added_id")
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	if err := each(rows, func() error {
		var id, ref int
		err := rows.Scan(&id, &ref)
		if want++; id != want || (id <= 390 && ref != id-1) || (id == 391 && ref != 399) {
			return fmt.Errorf("cell %d has added_id %d", ref+1, id)
		}
		return err
	}); err != nil || want != 391 {
		t.Errorf("%d cells: %v", want, err)
	}
	if added, lost, err := AddCopies(t.Context(), db, "c0", st.ds, 0, 2, refs); err != nil || added != 0 || lost != 0 {
		t.Errorf("again: %d %d %v", added, lost, err)
	}
	// What a node holds goes over to its master once.
	for _, want := range []int{4, 0} {
		if n, _, err := Carry(t.Context(), h1.DB(t, ""), h2.DB(t, "")); err != nil || n != want {
			t.Errorf("%d copies were carried over: %v", n, err)
		}
	}
	if got := numberedOn(t, h2, st.ds); got != fmt.Sprint(3+291+291+118+1+1+1) {
		t.Errorf("the master has %s copies", got)
	}
	// While the shard is away a cell that only a copy has is known to be kept.
	primary.Exec(t, "SET GLOBAL read_only = ON")
	primary.Exec(t, "DELETE FROM "+quote(st.ds, 0)+".entity")
	if s, err := st.State(t.Context(), st.ds, puts[104].Key); err != nil || s.State != cellog.StateBuffered {
		t.Errorf("state of a cell that only copies have: %v, %v", s.State, err)
	}
	if s, err := st.State(t.Context(), st.ds, puts[394].Key); err != nil || s.State != cellog.StateUnknown {
		t.Errorf("state of a cell that nobody has: %v, %v", s.State, err)
	}
	// A row that was tampered with is refused by name.
	h1.Exec(t, "UPDATE cellog_buffer.numbered_copies SET first_id = 2 WHERE last_id = 120 AND datastore = '"+st.ds+"'")
	refs, err = CopyRefs(t.Context(), []*sql.DB{h1.DB(t, "")}, "c0", st.ds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := AddCopies(t.Context(), db, "c0", st.ds, 0, 2, refs); err == nil {
		t.Error("a run with other numbers than its row says went in")
	}
}
