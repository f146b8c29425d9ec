package mysql

import (
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// A shard that is opened on another node of its cluster is found there while a
// look at the old one, which is frozen, hangs.
func TestAFrozenMasterHidesNoOther(t *testing.T) {
	a, b := mysqltest.Start(t), mysqltest.Start(t)
	b.MetaOf(t, "c0")
	st := newOpenStore(t, 1, func(c *Config) { c.RefreshEvery = time.Second }, a, b)
	if err := syscall.Kill(a.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(a.PID(), syscall.SIGCONT) }() // gone is as good
	frozen := st.clusters[0].nodes[0]
	// since is when the look that hangs began; zero: none does.
	since := func() time.Time {
		frozen.mu.Lock()
		defer frozen.mu.Unlock()
		if !frozen.looking {
			return time.Time{}
		}
		return frozen.looked
	}
	var began time.Time
	until(t, "a look at the frozen one hangs", func() bool {
		began = since()
		return time.Since(began) > time.Second && !began.IsZero()
	})
	err := CreateDatastore(t.Context(), CreateConfig{Name: st.ds, Shards: 1, Clusters: []storage.Cluster{clusterOf(mysqltest.Accounts.Admin, b)}, Grant: grant})
	if err != nil {
		t.Fatal(err)
	}
	b.Exec(t, "UPDATE `"+st.ds+"_0000`.shard_log SET epoch = 2, term = 2")
	until(t, "the route leads to the other one", func() bool {
		r, err := st.Route(st.ds, 0)
		return err == nil && r.Node == "n1" && r.Epoch == 2
	})
	if now := since(); !now.Equal(began) {
		t.Errorf("the look that hung since %v had ended first: %v", began, now)
	}
}
