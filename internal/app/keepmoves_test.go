package app

import (
	"fmt"
	"testing"
	"time"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/storage/mysql"
)

// A keeper finishes what a mover left, or opens the shard again where it was.
func TestKeeperFinishesMoves(t *testing.T) {
	// The keeper, which reads them, ends first.
	was := [2]time.Duration{finishPatience, lookAround}
	t.Cleanup(func() { finishPatience, lookAround = was[0], was[1] })
	finishPatience, lookAround = 2*time.Second, time.Second
	m := newMoving(t, true)
	ctx := t.Context()
	k := NewKeeper(m.cfg, m.env, 0)
	k.Start()
	t.Cleanup(k.Stop)
	until := func(step, to string) {
		t.Helper()
		m.grow(t, 40)
		died, undo := dieAt(step)
		err := m.moveUntil(ctx, Move{Datastore: "trips", Shard: 0, To: to})
		undo()
		if !died() {
			t.Fatalf("%s: not killed there: %v", step, err)
		}
	}
	isOn := func(cluster string) {
		t.Helper()
		began := time.Now()
		db, err := openAdmin(m.cfg.Cluster(cluster), cluster+"-n0")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		waitFor(t, time.Minute, func() error {
			h, _, err := mysql.Head(ctx, db, "trips", 0)
			if err == nil && !h.Open() {
				err = fmt.Errorf("%+v", h)
			}
			return err
		})
		t.Logf("open on %s after %.1f s", cluster, time.Since(began).Seconds())
		m.grow(t, 40)
	}
	until("move/handed-over", "c1")
	isOn("c1")
	until("move/closed", "c0")
	isOn("c0")
	until("move/arrived", "c1")
	isOn("c1")

	// It cannot go on while the other cluster has no master.
	until("move/final", "c0")
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(m.cfg, m.env, "test"), Cluster: "c0", Prefix: m.cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	claim, err := pub.Claim(ctx, publish.ClaimRequest{Mark: "m"})
	if err != nil {
		t.Fatal(err)
	}
	claim.Close(ctx)
	isOn("c1")
	if _, err := PromoteCluster(ctx, m.cfg, m.env, Promote{Cluster: "c0"}); err != nil {
		t.Fatal(err)
	}
	m.check(t)
}
