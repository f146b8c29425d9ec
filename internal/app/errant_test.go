package app

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cellog/cellog"
)

// A node has more errant cells than are listed: none is rebuilt away unseen, all
// are put again, and the one that lost is a rejected cell with both bodies.
func TestErrantCellsBeyondTheList(t *testing.T) {
	row := func(k cellog.Key) []byte { return k.Row[:] }
	defer func(n int) { maxErrant = n }(maxErrant)
	maxErrant = 3
	p := newPromotable(t)
	puts := p.write(t, 3)
	p.sets[0].Sync(t)
	master, minion := p.sets[0].Master, p.sets[0].Minions[0]
	rows := ""
	for i := 5; i < 455; i++ { // more than a page
		rows += fmt.Sprintf("INSERT INTO "+entity0+" SELECT %d, epoch, x'%x', column_name, ref_key, body, created_at, traceparent FROM "+entity0+" WHERE added_id = 3; ", i, row(inShard(0)))
	}
	x := row(inShard(0))
	// The minion's cell 4 stands on the master with another body.
	stray(t, minion, fmt.Sprintf("UPDATE "+entity0+" SET row_key = x'%x' WHERE added_id = 4; ", x)+rows+"UPDATE "+head0+" SET last_added_id = 454; ")
	master.Exec(t, "INSERT INTO "+entity0+" SELECT 5, epoch, "+fmt.Sprintf("x'%x'", x)+", column_name, ref_key, (SELECT body FROM "+entity0+" WHERE row_key = "+fmt.Sprintf("x'%x'", puts[0].Row[:])+"), created_at, traceparent FROM "+entity0+
		" AS e WHERE added_id = 3; INSERT INTO "+entity0+" SELECT 4, epoch, REPEAT('y', 16), column_name, ref_key, body, created_at, traceparent FROM "+entity0+" AS e WHERE added_id = 3; UPDATE "+head0+" SET last_added_id = 5")
	rejected := func() string {
		t.Helper()
		return master.Query(t, fmt.Sprintf("SELECT CONCAT(COUNT(*), ' ', SUM(row_key = x'%x' AND body = x'%x' AND winner_added_id = 5 AND winner_body = x'%x' AND reason = 'conflict')) FROM cellog_buffer.rejected_cells WHERE datastore = 'trips'", x, puts[2].Body, puts[0].Body))
	}
	out, err := RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1"})
	if !errors.Is(err, ErrErrant) || out.Rebuilt || len(out.Errant) != 3 || out.ErrantTotal != 451 || out.Put != 0 {
		t.Fatalf("%+v %v, want 3 of 451 listed", out, err)
	}
	for i, e := range out.Errant {
		if e.AddedID != []cellog.AddedID{4, 5, 6}[i] || e.Conflict != (i == 0) {
			t.Errorf("listed as number %d: %+v", i, e)
		}
	}
	waitFor(t, time.Minute, func() error { // until the first one's lock is gone
		if out, err = RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantPut}); errors.Is(err, ErrRejoining) {
			return err
		}
		return nil
	})
	if err != nil || !out.Rebuilt || out.ErrantTotal != 451 || out.Put != 450 || out.Conflicts != 1 {
		out.Errant = nil
		t.Fatalf("%+v %v, want 450 put and one conflict", out, err)
	}
	if got := rejected(); got != "1 1" {
		t.Errorf("rejected cells: %s", got)
	}
	if got := minion.Query(t, "SELECT CONCAT(COUNT(*), ' ', MAX(added_id)) FROM "+entity0); got != "455 455" {
		t.Errorf("cells: %s", got)
	}
}
