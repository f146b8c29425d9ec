package app

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
)

// Two tailers that promote by themselves lose the same master: their claims
// fence each other, and in the end one node is the master and has every cell.
func TestTailersPromoteByThemselves(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	p.cfg.Tailer.AutoPromote = 300 * time.Millisecond
	for range 2 {
		tl, err := NewTailers(p.cfg, p.env)
		if err != nil {
			t.Fatal(err)
		}
		p.run(t, tl)
	}
	p.write(t, 5)
	p.sets[0].Sync(t)
	p.sets[0].Master.Kill()
	<-p.sets[0].Master.Done()
	minion := p.sets[0].Minions[0]
	waitFor(t, time.Minute, func() error {
		c, _ := p.w.final.cluster("c0")
		if c == nil || c.State != position.Open || c.Node != "c0-n1" {
			return fmt.Errorf("%+v", c)
		}
		want := fmt.Sprintf("open %d 0", c.Term)
		if got := minion.Query(t, "SELECT CONCAT(state, ' ', term, ' ', @@global.read_only + 0) FROM "+head0); got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		if r, err := p.w.store.Route("trips", 0); err != nil || r.Node != "c0-n1" {
			return fmt.Errorf("%v %w", r, err)
		}
		return nil
	})
	p.write(t, 5)
	waitFor(t, time.Minute, func() error {
		if m, _ := p.w.final.Mark("trips", 0); m.Last != 10 {
			return fmt.Errorf("final up to %d", m.Last)
		}
		return nil
	})
	if got := minion.Query(t, "SELECT CONCAT(COUNT(*), ' ', MAX(added_id)) FROM "+entity0); got != "10 10" {
		t.Errorf("cells: %s", got)
	}
}

// A node that somebody made writable in place of a master that is gone is shown
// as nominated, and a promotion that names no node prefers it, as long as it
// passes like any other.
func TestNominatedNode(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotableWith(t, 2)
	p.write(t, 3)
	p.sets[0].Sync(t)
	n1, n2 := p.sets[0].Minions[0], p.sets[0].Minions[1]
	// It is behind, too.
	if err := mysqlreplica.Stop(t.Context(), n2.DB(t, "")); err != nil {
		t.Fatal(err)
	}
	p.write(t, 2)
	waitFor(t, 20*time.Second, func() error {
		if got := n1.Query(t, "SELECT MAX(added_id) FROM "+entity0); got != "5" {
			return errors.New(got)
		}
		return nil
	})
	p.sets[0].Master.Kill()
	<-p.sets[0].Master.Done()
	n2.Exec(t, "SET GLOBAL read_only = OFF")
	// It takes no cells before it is opened: it would number them anew, in the
	// same epoch.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for _, s := range []cellog.ShardID{0, 0, 2} { // of c0, alone and together
		if out, errs := p.w.store.Write(ctx, "trips", s, p.puts(t, 1)); errs[0] == nil {
			t.Errorf("a nominated node took a cell: %+v", out)
		}
	}
	if got := n2.Query(t, "SELECT MAX(added_id) FROM "+entity0); got != "3" {
		t.Errorf("a nominated node has cells up to %s, want 3", got)
	}
	states, err := ClusterStates(t.Context(), p.cfg, p.env, "c0")
	if err != nil || states[0].Nominated != "c0-n2" || states[0].Nodes[2].Role != "nominated" || states[0].Opened != "c0-n0" {
		t.Errorf("%+v %v", states, err)
	}
	out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"})
	if err != nil || out.Node != "c0-n2" || len(out.Following) != 1 {
		t.Fatalf("%+v %v, want c0-n2", out, err)
	}
	if got := n2.Query(t, "SELECT CONCAT(COUNT(*), ' ', MAX(added_id)) FROM "+entity0); got != "5 5" {
		t.Errorf("cells: %s", got)
	}
	if states, err = ClusterStates(t.Context(), p.cfg, p.env, "c0"); err != nil || states[0].Nominated != "" {
		t.Errorf("%+v %v", states, err)
	}
	// Nominated again, with the epoch of a dead branch, while n2 is gone.
	waitFor(t, 20*time.Second, func() error {
		if got := n1.Query(t, "SELECT epoch FROM "+head0); got != fmt.Sprint(out.Term) {
			return errors.New("epoch " + got)
		}
		return nil
	})
	n2.Kill()
	<-n2.Done()
	quietly(t, n1, "UPDATE "+head0+" SET epoch = 1")
	n1.Exec(t, "SET GLOBAL read_only = OFF")
	if out, err = PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"}); err == nil {
		t.Errorf("a node of a dead branch was promoted: %+v", out)
	}
	if n1.Query(t, "SELECT @@global.read_only") != "1" {
		t.Error("it takes writes still")
	}
}

// A keeper that is cut off from Kafka knows an old record only: the node that was
// opened since goes on taking writes. One that looks makes a stray one read-only.
func TestKeeperThatSeesNothingDemotesNobody(t *testing.T) {
	p := newPromotable(t)
	minion := p.sets[0].Minions[0]
	minion.Exec(t, "SET GLOBAL read_only = OFF")
	cut := newFinal(p.cfg, p.env)
	cut.start()
	cut.wait(t.Context())
	cut.stop()
	k := NewKeeper(p.cfg, p.env, 0)
	k.final = cut
	w := watcher{k: k, cluster: &p.cfg.Clusters[0]}
	defer w.close()
	readOnly := func() string {
		t.Helper()
		if err := w.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		return minion.Query(t, "SELECT @@global.read_only + 0")
	}
	for c := range cut.looked {
		cut.looked[c] = time.Now().Add(-storage.LookFor - time.Millisecond)
	}
	if readOnly() != "0" {
		t.Error("the node was made read-only by one that has seen nothing for 2 s")
	}
	k.final = p.w.final
	waitFor(t, 20*time.Second, func() error {
		if readOnly() != "1" {
			return errors.New("the stray node still takes writes")
		}
		return nil
	})
}
