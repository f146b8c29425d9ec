package mysql

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// An old master that is back, and does not follow yet, has cells of a dead branch
// under ids that other cells have now. They are given as final to nobody, whether
// a minion is asked for or the master is away.
func TestDeadBranchIsNotGivenAsFinal(t *testing.T) {
	c := mysqltest.Cluster(t, 1)
	marks := &testMarks{changed: make(chan struct{})}
	st := newOpenStore(t, 1, func(c *Config) { c.Marks = marks }, c.Master, c.Minions[0])
	ctx, old := t.Context(), c.Minions[0]
	var first cellog.Key // of the last write
	write := func() {
		t.Helper()
		var puts []cellog.Put
		for range 3 {
			puts = append(puts, cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)})
		}
		first = puts[0].Key
		_, errs := st.Write(ctx, st.ds, 0, puts)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	write()
	dead := first
	dead.Column = "DEAD"
	c.Sync(t)
	marks.set(storage.Mark{Epoch: 1, First: 1, Last: 3})
	if _, _, o, err := st.Log(ctx, st.ds, 0, 0, 3, "", 9, cellog.Minion); err != nil || o.From != cellog.Minion {
		t.Errorf("a minion of the epoch is not asked: %+v %v", o, err)
	}
	if err := mysqlreplica.Stop(ctx, old.DB(t, "")); err != nil {
		t.Fatal(err)
	}
	db := quote(st.ds, 0)
	old.Exec(t, "SET GLOBAL read_only = OFF; SET sql_log_bin = 0; INSERT INTO "+db+".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) "+
		"SELECT added_id + 3, epoch, row_key, 'DEAD', ref_key, body, created_at FROM "+db+".entity; UPDATE "+db+".shard_log SET last_added_id = 6; SET sql_log_bin = 1; SET GLOBAL read_only = ON")
	c.Master.Exec(t, "UPDATE "+db+".shard_log SET epoch = 2")
	write()
	write()
	marks.set(storage.Mark{Epoch: 2, First: 4, Last: 9})
	for _, from := range []cellog.ReadFrom{cellog.Minion, cellog.Master} {
		cells, _, o, err := st.Log(ctx, st.ds, 0, 3, 6, "", 9, from)
		if err != nil || len(cells) != 3 || cells[0].Column != "BASE" || cells[0].Epoch != 2 || o.Node != "c0/n0" {
			t.Errorf("log, %v: %+v %+v %v", from, cells, o, err)
		}
		if id, err := st.Before(ctx, st.ds, 0, time.Now().Add(time.Hour), from); err != nil || id != 9 {
			t.Errorf("before, %v: %d %v, want 9", from, id, err)
		}
		st.anchors = newAnchors()
		page := []cellog.Cell{{Key: cellog.Key{Column: "BASE"}, AddedID: 7}}
		if err := st.Sequences(ctx, st.ds, 0, 6, page, from); err != nil || page[0].Sequence != 7 {
			t.Errorf("sequences, %v: %d %v, want 7", from, page[0].Sequence, err)
		}
	}
	c.Master.Kill()
	<-c.Master.Done()
	for _, from := range []cellog.ReadFrom{cellog.Minion, cellog.Master} {
		if cells, _, o, err := st.Log(ctx, st.ds, 0, 3, 6, "", 9, from); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("log without a master, %v: %+v %+v %v", from, cells, o, err)
		}
		if id, err := st.Before(ctx, st.ds, 0, time.Now().Add(time.Hour), from); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("before without a master, %v: %d %v", from, id, err)
		}
	}
	if state, err := st.State(ctx, st.ds, dead); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("the state of a dead branch's cell: %+v %v", state, err)
	}
}

// A minion that lags, in the same epoch, is not asked for what it has not got yet:
// what it lacks would look as though it were not there, to one who counts too.
func TestMinionThatLagsGivesNoHoles(t *testing.T) {
	c := mysqltest.Cluster(t, 1)
	marks := &testMarks{changed: make(chan struct{})}
	st := newOpenStore(t, 1, func(c *Config) { c.Marks = marks }, c.Master, c.Minions[0])
	ctx := t.Context()
	write := func(n int) {
		t.Helper()
		for range n {
			_, errs := st.Write(ctx, st.ds, 0, []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(2)
	c.Sync(t)
	if err := mysqlreplica.Stop(ctx, c.Minions[0].DB(t, "")); err != nil {
		t.Fatal(err)
	}
	write(3)
	marks.set(storage.Mark{Epoch: 1, First: 1, Last: 4})
	for upTo, node := range map[cellog.AddedID]string{2: "c0/n1", 4: "c0/n0"} {
		if cells, more, o, err := st.Log(ctx, st.ds, 0, 0, upTo, "", 9, cellog.Minion); err != nil || more || len(cells) != int(upTo) || o.Node != node {
			t.Errorf("log up to %d: %d cells, %v, %+v %v", upTo, len(cells), more, o, err)
		}
	}
	page := []cellog.Cell{{Key: cellog.Key{Column: "BASE"}, AddedID: 4}}
	if err := st.Sequences(ctx, st.ds, 0, 3, page, cellog.Minion); err != nil || page[0].Sequence != 4 {
		t.Errorf("sequences: %d %v, want 4", page[0].Sequence, err)
	}
	c.Master.Kill()
	<-c.Master.Done()
	if cells, _, _, err := st.Log(ctx, st.ds, 0, 0, 4, "", 9, cellog.Master); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("without a master: %d cells, %v", len(cells), err)
	}
	// What it has, it gives.
	if cells, _, o, err := st.Log(ctx, st.ds, 0, 0, 2, "", 9, cellog.Master); err != nil || len(cells) != 2 || o.From != cellog.Minion {
		t.Errorf("what it has: %d cells, %+v %v", len(cells), o, err)
	}
}
