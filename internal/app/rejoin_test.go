package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqltest"
)

// mark makes a table on a node that a rebuild would drop; left says that it is
// there.
func mark(t *testing.T, n *mysqltest.Node) (left func() bool) {
	t.Helper()
	quietly(t, n, "CREATE TABLE trips_0000.mark (id INT PRIMARY KEY)")
	return func() bool {
		t.Helper()
		return n.Query(t, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'trips_0000' AND table_name = 'mark'") == "1"
	}
}

// stray makes cells on a node that stops following: 4, 5, ….
func stray(t *testing.T, n *mysqltest.Node, rows string) {
	t.Helper()
	if err := mysqlreplica.Stop(t.Context(), n.DB(t, "")); err != nil {
		t.Fatal(err)
	}
	n.Exec(t, "SET GLOBAL read_only = OFF; INSERT INTO "+entity0+" SELECT 4, epoch, REPEAT('x', 16), column_name, ref_key, body, created_at, traceparent FROM "+entity0+
		" WHERE added_id = 3; UPDATE "+head0+" SET last_added_id = 4; "+rows+"SET GLOBAL read_only = ON")
}

// A node that has nothing of its own, and cannot follow for a reason that can be
// mended, keeps all that it has.
func TestRejoinRebuildsOnlyWhatDiffers(t *testing.T) {
	defer func(d time.Duration) { rePointPatience = d }(rePointPatience)
	rePointPatience = 2 * time.Second
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	left := mark(t, minion)
	wrong := cloned(p.cfg)
	wrong.Clusters[0].Accounts.Replica.Password = config.NewSecret(secret)
	out, err := RejoinNode(t.Context(), wrong, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantPut})
	if err == nil || out.Rebuilt || !left() || !strings.Contains(err.Error(), "1045") || !strings.Contains(err.Error(), "--rebuild") || strings.Contains(err.Error(), secret) {
		t.Fatalf("a wrong password: %+v, its data is there: %v, %v", out, left(), err)
	}
	rePointPatience = 15 * time.Second
	if out, err = RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1"}); err != nil || out.Rebuilt || !left() {
		t.Fatalf("mended: %+v %v", out, err)
	}
	// What replication itself finds to differ: the minion has the next cell already,
	// without a trace in its log.
	if err := mysqlreplica.Stop(t.Context(), minion.DB(t, "")); err != nil {
		t.Fatal(err)
	}
	quietly(t, minion, "INSERT INTO "+entity0+" SELECT 4, epoch, REPEAT('x', 16), column_name, ref_key, body, created_at, traceparent FROM "+entity0+" WHERE added_id = 3")
	p.write(t, 1)
	if out, err = RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantDrop}); err != nil || !out.Rebuilt {
		t.Fatalf("diverged: %+v %v", out, err)
	}
	if left() {
		t.Error("it was not rebuilt")
	}
	p.sets[0].Sync(t)
}

// A node that is only behind follows; one that has stopped does not, however long
// it may take.
func TestRejoinedNodeMayBeBehind(t *testing.T) {
	defer func(d time.Duration) { rePointPatience = d }(rePointPatience)
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0].DB(t, "")
	// What another cluster's master has never comes.
	other := p.sets[1].Master
	for range 50 {
		other.Exec(t, "CREATE DATABASE behind; DROP DATABASE behind")
	}
	var pr promotion
	rePointPatience = 1500 * time.Millisecond
	if err := pr.applies(t.Context(), minion, other.DB(t, "")); err != nil {
		t.Errorf("behind: %v", err)
	}
	if err := mysqlreplica.Stop(t.Context(), minion); err != nil {
		t.Fatal(err)
	}
	rePointPatience = time.Minute
	if err := pr.applies(t.Context(), minion, other.DB(t, "")); !errors.Is(err, mysqlreplica.ErrStopped) || errors.Is(err, mysqlreplica.ErrDiverged) {
		t.Errorf("stopped: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pr.applies(ctx, minion, other.DB(t, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

// A promotion that is claimed while a rejoin prepares its rebuild stops it before
// anything is dropped.
func TestRejoinStopsForAPromotion(t *testing.T) {
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	left := mark(t, minion)
	stray(t, minion, "")
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(p.cfg, p.env, "test"), Cluster: "c0", Prefix: p.cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	failpoint.Set(func(at string) bool {
		if at == "rejoin/rebuild" {
			c, err := pub.Claim(t.Context(), publish.ClaimRequest{Mark: "m"})
			if err != nil {
				t.Error(err)
				return false
			}
			c.Close(t.Context())
		}
		return false
	})
	defer failpoint.Set(nil)
	out, err := RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantDrop})
	if err == nil || out.Rebuilt || !left() || !strings.Contains(err.Error(), "promoted meanwhile") {
		t.Errorf("%+v, its data is there: %v, %v", out, left(), err)
	}
}
