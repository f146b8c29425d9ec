package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

var shared struct {
	sync.Mutex
	server *mysqlserver.Server
	dir    string
	serial int
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.RemoveAll(shared.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func flavour() mysqlserver.Flavour {
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		return mysqlserver.Flavour(f)
	}
	return mysqlserver.MariaDB
}

func startServer(tb testing.TB, dir string, id uint32) *mysqlserver.Server {
	tb.Helper()
	srv, err := mysqlserver.Start(context.Background(), mysqlserver.Config{Dir: dir, Flavour: flavour(), Binary: os.Getenv("CELLOG_MYSQLD"), ServerID: id})
	if err != nil {
		tb.Fatal(err)
	}
	writable(tb, srv)
	return srv
}

// writable makes a server, which starts read-only, take writes.
func writable(tb testing.TB, srv *mysqlserver.Server) {
	tb.Helper()
	db := adminDB(tb, srv)
	for _, q := range []string{"SET GLOBAL super_read_only = 0", "SET GLOBAL read_only = 0"} {
		if _, err := db.Exec(q); err != nil && q != "SET GLOBAL super_read_only = 0" {
			tb.Fatal(err)
		}
	}
}

// server returns the server that all tests of this binary share.
func server(tb testing.TB) *mysqlserver.Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		dir, err := os.MkdirTemp("", "cellog-storage")
		if err != nil {
			tb.Fatal(err)
		}
		shared.dir = dir
		shared.server = startServer(tb, dir, 1)
	}
	return shared.server
}

func adminDB(tb testing.TB, srv *mysqlserver.Server) *sql.DB {
	tb.Helper()
	db, err := srv.Open("")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

func clusterOf(srv *mysqlserver.Server) storage.Cluster {
	return storage.Cluster{Name: "c0", Nodes: []storage.Node{{Name: "n0", Addr: srv.Socket(), User: "root"}}}
}

// bundle is a fresh datastore with an open store.
type bundle struct {
	*Store
	ds  string
	db  *sql.DB
	srv *mysqlserver.Server
}

func newOpenStore(tb testing.TB, srv *mysqlserver.Server, shards int, mod func(*Config)) *bundle {
	tb.Helper()
	shared.Lock()
	shared.serial++
	ds := fmt.Sprintf("t%d", shared.serial)
	shared.Unlock()
	ctx := context.Background()
	if err := CreateDatastore(ctx, CreateConfig{Name: ds, Shards: shards, Clusters: []storage.Cluster{clusterOf(srv)}}); err != nil {
		tb.Fatal(err)
	}
	cfg := Config{Clusters: []storage.Cluster{clusterOf(srv)}}
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
	return &bundle{Store: st, ds: ds, db: adminDB(tb, srv), srv: srv}
}

func mustBody(tb testing.TB, json string) []byte {
	tb.Helper()
	b, err := body.Encode(nil, []byte(json), body.Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func waitFor(tb testing.TB, max time.Duration, f func() error) {
	tb.Helper()
	deadline := time.Now().Add(max)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %v", max, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
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
