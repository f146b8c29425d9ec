package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
)

// revoke takes from the working accounts what they have on a node's shards, as it
// is on one that was rebuilt by hand.
func revoke(t *testing.T, n *mysqltest.Node) {
	t.Helper()
	a := mysqltest.Accounts
	quietly(t, n, "REVOKE SELECT ON `trips\\_%`.* FROM '"+a.Tailer.User+"'@'%'; REVOKE SELECT, INSERT ON `trips\\_%`.* FROM '"+a.Worker.User+"'@'%'; "+
		"REVOKE UPDATE ON trips_0000.shard_log FROM '"+a.Worker.User+"'@'%'; REVOKE DELETE ON cellog_buffer.* FROM '"+a.Worker.User+"'@'%'; REVOKE DROP ON `trips\\_%`.* FROM '"+a.Indexer.User+"'@'%'")
	if l := lacks(t, n); len(l) != 5 {
		t.Fatalf("lacking: %v", l)
	}
}

// lacks are the GRANTs that a node of c0 lacks.
func lacks(t *testing.T, n *mysqltest.Node) []string {
	t.Helper()
	l, err := mysqlaccounts.Lacking(t.Context(), n.DB(t, ""), mysqltest.Accounts, map[string][]cellog.ShardID{"trips": {0}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// protected says whether a server refuses what a minion must refuse.
func protected(t *testing.T, n *mysqltest.Node) bool {
	t.Helper()
	return n.Query(t, "SELECT @@global.read_only") == "1" && (mysqltest.Flavour() == "mariadb" || n.Query(t, "SELECT @@global.super_read_only") == "1")
}

// A node that is only re-pointed gets the rights that its accounts lack, and
// nothing of it is in its log: it can be rejoined again, and is not rebuilt.
func TestRejoinGivesRights(t *testing.T) {
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	left := mark(t, minion)
	revoke(t, minion)
	for range 2 {
		out, err := RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1"})
		if err != nil || out.Rebuilt || !left() {
			t.Fatalf("%+v %v", out, err)
		}
		if l := lacks(t, minion); len(l) > 0 || !protected(t, minion) {
			t.Errorf("it lacks %v; it is protected: %v", l, protected(t, minion))
		}
	}
	var n int
	if err := minion.As(t, mysqltest.Accounts.Tailer, "").QueryRow("SELECT COUNT(*) FROM " + entity0).Scan(&n); err != nil || n != 3 {
		t.Errorf("the tailer sees %d cells: %v", n, err)
	}
}

// Wherever a rebuild is cut off, the node is not taken for one of the cluster
// before the accounts have their rights there.
func TestRightsBeforeARebuiltNodeCounts(t *testing.T) {
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	stray(t, minion, "")
	revoke(t, minion)
	died, undo := dieAt("rejoin/copied")
	defer undo()
	func() {
		defer func() {
			if e, ok := recover().(error); !ok || !errors.Is(e, errKilled) {
				t.Errorf("not killed: %v", e)
			}
		}()
		_, _ = RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantDrop})
	}()
	if !died() {
		t.Fatal("nothing was copied")
	}
	var pr promotion
	pr.req.Cluster = "c0"
	if is, err := pr.isNode(t.Context(), minion.DB(t, "")); err != nil || is {
		t.Errorf("it counts as a node: %v %v", is, err)
	}
	out, err := RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1"})
	if err != nil || !out.Rebuilt {
		t.Fatalf("%+v %v", out, err)
	}
	if l := lacks(t, minion); len(l) > 0 || !protected(t, minion) {
		t.Errorf("it lacks %v; it is protected: %v", l, protected(t, minion))
	}
	p.sets[0].Sync(t)
}

// A node that lacks an account is not dropped for nothing; one that an account may
// only reach from somewhere gets the rights for that.
func TestRejoinWantsTheAccounts(t *testing.T) {
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	left, indexer := mark(t, minion), mysqltest.Accounts.Indexer
	stray(t, minion, "")
	quietly(t, minion, "DROP USER '"+indexer.User+"'@'%'")
	failpoint.Set(func(at string) bool {
		if at == "rejoin/rebuild" {
			t.Error("it is rebuilt")
		}
		return false
	})
	out, err := RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantDrop})
	failpoint.Set(nil)
	if !errors.Is(err, mysqlaccounts.ErrNoAccount) || !strings.Contains(err.Error(), indexer.User) || !strings.Contains(err.Error(), "CREATE USER") || out.Rebuilt || !left() {
		t.Errorf("%+v %v", out, err)
	}
	quietly(t, minion, "CREATE USER '"+indexer.User+"'@'127.0.0.1' IDENTIFIED BY '"+indexer.Password+"'")
	out, err = RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantDrop})
	if err != nil || !out.Rebuilt {
		t.Fatalf("%+v %v", out, err)
	}
	if l := lacks(t, minion); len(l) > 0 {
		t.Errorf("it lacks %v", l)
	}
	if _, err := minion.As(t, indexer, "").Exec("SELECT * FROM " + head0); err != nil {
		t.Error(err)
	}
}

// A node whose accounts lack rights gets them when it becomes the master.
func TestPromotionGivesRights(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	tl, err := NewTailers(p.cfg, p.env)
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, tl)
	p.write(t, 3)
	p.sets[0].Sync(t)
	revoke(t, p.sets[0].Minions[0])
	out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0", Node: "c0-n1", Progress: func(step string) {
		if strings.Contains(step, "rights") {
			t.Error(step)
		}
	}})
	if err != nil || out.Node != "c0-n1" {
		t.Fatalf("%+v %v", out, err)
	}
	if l := lacks(t, p.sets[0].Minions[0]); len(l) > 0 {
		t.Errorf("the new master lacks %v", l)
	}
	put := p.puts(t, 1)
	waitFor(t, 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it may begin on the old master
		defer cancel()
		_, errs := p.w.store.Write(ctx, "trips", 0, put)
		return errors.Join(errs...)
	})
}
