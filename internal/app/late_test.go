package app

import (
	"context"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/failpoint"
)

// What a node got after it was looked at, from whoever drained into it, say, is
// of the old epoch too: the promotion says so to Kafka, or its tailer would stop
// there.
func TestCellsThatComeBeforeTheClose(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	p.write(t, 5)
	p.publish(t, 5)
	p.sets[0].Master.Kill()
	<-p.sets[0].Master.Done()
	minion := p.sets[0].Minions[0]
	came := false
	failpoint.Set(func(name string) bool {
		if name == "promote/others-final" {
			came = true
			const fields = "epoch, column_name, ref_key, body, created_at, traceparent"
			quietly(t, minion, "INSERT INTO "+entity0+" (added_id, row_key, "+fields+") SELECT 6, REPEAT('y', 16), "+fields+" FROM "+entity0+" WHERE added_id = 5; UPDATE "+head0+" SET last_added_id = 6")
		}
		return false
	})
	defer failpoint.Set(nil)
	if out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"}); err != nil || !came {
		t.Fatalf("%+v %v (%v)", out, err, came)
	}
	failpoint.Set(nil)
	p.write(t, 1)
	stop := p.tail(t, 7)
	defer stop()
}

// An old master that answers, but cannot make itself read-only, is left behind:
// copies fence it.
func TestMasterThatDoesNotStop(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	p.write(t, 5)
	p.publish(t, 5)
	conn, err := p.sets[0].Master.DB(t, "").Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()                                                       // its lock goes with it
	if _, err := conn.ExecContext(t.Context(), "LOCK TABLES "+entity0+" WRITE"); err != nil { // SET GLOBAL read_only waits for it
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := PromoteCluster(ctx, p.cfg, p.env, Promote{Cluster: "c0"})
	if err != nil || out.Node != "c0-n1" || out.Left["c0-n0"] == "" {
		t.Errorf("%+v %v", out, err)
	}
}
