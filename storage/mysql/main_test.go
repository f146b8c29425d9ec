package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

var serial atomic.Int64

// clusterOf is a cluster as a worker sees it, or with admin as its creator.
func clusterOf(a mysqlaccounts.Account, nodes ...*mysqltest.Node) storage.Cluster {
	c := storage.Cluster{Name: "c0"}
	for i, n := range nodes {
		c.Nodes = append(c.Nodes, storage.Node{Name: fmt.Sprintf("n%d", i), Addr: n.Addr(), User: a.User, Password: a.Password})
	}
	return c
}

func grant(ctx context.Context, db *sql.DB, database string) error {
	if ds, shard, ok := cellog.ParseDatabaseName(database); ok {
		return mysqlaccounts.GrantDatastore(ctx, db, mysqltest.Accounts, ds, []cellog.ShardID{shard})
	}
	return nil
}

// bundle is a fresh datastore with an open store, which has a worker's rights.
type bundle struct {
	*Store
	ds    string
	db    *sql.DB    // an admin's
	marks *testMarks // nil unless it is of newClusters
}

// newOpenStore makes a datastore on a server, or on a master with minions.
func newOpenStore(tb testing.TB, shards int, mod func(*Config), nodes ...*mysqltest.Node) *bundle {
	tb.Helper()
	if nodes == nil {
		nodes = []*mysqltest.Node{mysqltest.Server(tb)}
	}
	ds := fmt.Sprintf("t%d", serial.Add(1))
	ctx := context.Background()
	err := CreateDatastore(ctx, CreateConfig{Name: ds, Shards: shards, Clusters: []storage.Cluster{clusterOf(mysqltest.Accounts.Admin, nodes[0])}, Grant: grant})
	if err != nil {
		tb.Fatal(err)
	}
	cfg := Config{Clusters: []storage.Cluster{clusterOf(mysqltest.Accounts.Worker, nodes...)}}
	if mod != nil {
		mod(&cfg)
	}
	st, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	if err := st.Start(ctx); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := st.Stop(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return &bundle{Store: st, ds: ds, db: nodes[0].DB(tb, "")}
}

func mustBody(tb testing.TB, json string) []byte {
	tb.Helper()
	b, err := body.Encode(nil, []byte(json), body.Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// checkDense fails unless a shard's log is exactly 1..n, as shard_log says.
func checkDense(tb testing.TB, db *sql.DB, ds string, shard cellog.ShardID) int64 {
	tb.Helper()
	var n, lo, hi, last int64
	q := "SELECT COUNT(*), COALESCE(MIN(added_id),1), COALESCE(MAX(added_id),0), (SELECT last_added_id FROM " + quote(ds, shard) + ".shard_log) FROM " + quote(ds, shard) + ".entity"
	if err := db.QueryRow(q).Scan(&n, &lo, &hi, &last); err != nil {
		tb.Fatal(err)
	}
	if lo != 1 || hi != n || last != n {
		tb.Errorf("%s: %d rows with added_id %d..%d, shard_log says %d", quote(ds, shard), n, lo, hi, last)
	}
	return n
}
