package app

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
)

// rejoining starts a keeper that promotes after the grace and brings nodes back.
func (p *promotable) rejoining(t *testing.T, grace time.Duration) {
	t.Helper()
	k := NewKeeper(p.cfg, p.env, grace)
	k.rejoins = true
	k.Start()
	t.Cleanup(k.Stop)
}

// While a node is rebuilt the master fails: another one is promoted all the same.
func TestKeeperPromotesDuringARejoin(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotableWith(t, 2)
	tl, err := NewTailers(p.cfg, p.env)
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, tl)
	p.write(t, 3)
	p.sets[0].Sync(t)
	stray(t, p.sets[0].Minions[0], "")
	reached, release := make(chan struct{}), make(chan struct{})
	first := true
	failpoint.Set(func(at string) bool {
		if at == "rejoin/rebuild" && first { // one look at a time
			first = false
			close(reached)
			<-release
		}
		return false
	})
	p.rejoining(t, time.Second)
	t.Cleanup(func() { failpoint.Set(nil) })
	t.Cleanup(func() { close(release) }) // first, for the keeper waits for it
	select {
	case <-reached:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is rebuilt")
	}
	p.sets[0].Master.Kill()
	<-p.sets[0].Master.Done()
	waitFor(t, time.Minute, func() error {
		c, _ := p.w.final.cluster("c0")
		if c == nil || c.State != position.Open || c.Node == "c0-n0" {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// A thread that was stopped without an error is started again.
func TestKeeperStartsStoppedThreads(t *testing.T) {
	p := newPromotable(t)
	p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	db, left := minion.DB(t, ""), mark(t, minion)
	p.rejoining(t, 0)
	for _, thread := range []string{"IO_THREAD", "SQL_THREAD"} {
		statement := "STOP REPLICA "
		if s, err := mysqlreplica.Identity(t.Context(), db); err != nil {
			t.Fatal(err)
		} else if s.MariaDB {
			statement = "STOP SLAVE "
		}
		minion.Exec(t, statement+thread)
		waitFor(t, time.Minute, func() error {
			st, err := mysqlreplica.Status(t.Context(), db)
			if err == nil && (!st.Receiving || !st.Applying) {
				err = errors.New(thread + " is not started again")
			}
			return err
		})
	}
	if !left() {
		t.Error("it was rebuilt")
	}
}
