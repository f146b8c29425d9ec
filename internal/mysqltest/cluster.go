package mysqltest

import (
	"context"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqlserver"
)

// Set is a storage cluster for one test: a master and its minions.
type Set struct {
	Master  *Node
	Minions []*Node
}

// Cluster starts a master and minions that follow it by GTID; all are stopped
// when the test ends.
func Cluster(t testing.TB, minions int) *Set {
	t.Helper()
	c := &Set{Master: Start(t)}
	for range minions {
		m := startOwn(t, mysqlserver.Config{Dir: t.TempDir()}, false)
		if err := m.Follow(context.Background(), c.Master.Server, Accounts.Replica.User, Accounts.Replica.Password); err != nil {
			t.Fatalf("mysqltest: %v", err)
		}
		c.Minions = append(c.Minions, m)
	}
	c.Sync(t)
	return c
}

// Sync returns when every minion has applied all that the master has.
func (c *Set) Sync(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gtids, err := c.Master.GTIDs(ctx)
	if err != nil {
		t.Fatalf("mysqltest: %v", err)
	}
	for _, m := range c.Minions {
		if err := m.WaitForGTIDs(ctx, gtids); err != nil {
			r, rerr := m.Replication(context.Background())
			t.Fatalf("mysqltest: %v; minion: %+v %v", err, r, rerr)
		}
	}
}
