package tail

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/schemas/sqlfiles"
)

// server is shared by all tests of the binary but those that purge or restart.
var server *mysqlserver.Server

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		runChild(spec)
		return
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "cellog-tail-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		server, err = startServer(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer server.Kill()
		fmt.Printf("server: %s\n", server.Version())
		return m.Run()
	}())
}

func startServer(dir string) (*mysqlserver.Server, error) {
	s, err := mysqlserver.Start(context.Background(), mysqlserver.Config{
		Dir: dir, ServerID: 1,
		Flavour: mysqlserver.Flavour(os.Getenv("CELLOG_TEST_FLAVOUR")),
		Binary:  os.Getenv("CELLOG_MYSQLD"),
	})
	if err != nil {
		return nil, err
	}
	db, err := s.Open("")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	_, err = db.Exec("SET GLOBAL read_only = 0")
	return s, err
}

var nth atomic.Int64

// newRig makes a datastore on the shared server, and a broker.
func newRig(t testing.TB, shards int) *rig {
	t.Helper()
	n := nth.Add(1)
	r := &rig{
		account: account{Addr: server.Socket(), User: "root"},
		kafka:   kafka.Config{Addrs: brokers(t)},
		cluster: fmt.Sprintf("c%d", n), prefix: fmt.Sprintf("p%d-%d.", os.Getpid(), n),
		store: fmt.Sprintf("t%d", n), shards: shards,
	}
	r.db = open(t, r.account)
	r.exec(t, "CREATE DATABASE IF NOT EXISTS cellog_meta")
	r.exec(t, "CREATE DATABASE IF NOT EXISTS cellog_buffer")
	r.migrate(t, sqlfiles.Server(), "")
	r.exec(t, "INSERT INTO cellog_meta.datastores VALUES (?, ?, ?, NOW(6))", r.store, shards, cellog.DefaultPartitions(shards))
	for i := range shards {
		db := cellog.DatabaseName(r.store, cellog.ShardID(i))
		r.exec(t, "CREATE DATABASE "+db)
		r.migrate(t, sqlfiles.Shard(), db+".")
		r.exec(t, "INSERT INTO "+db+".shard_log VALUES (1, 1, 1, 'open', 0, '2000-01-01')")
	}
	t.Cleanup(func() {
		for i := range shards {
			r.exec(t, "DROP DATABASE "+cellog.DatabaseName(r.store, cellog.ShardID(i)))
		}
		r.exec(t, "DELETE FROM cellog_meta.datastores WHERE name = ?", r.store)
	})
	r.firstOpen(t)
	return r
}

func (r *rig) exec(t testing.TB, q string, args ...any) {
	t.Helper()
	if _, err := r.db.Exec(q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func (r *rig) migrate(t testing.TB, f fs.FS, db string) {
	t.Helper()
	files, err := fs.Glob(f, "*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal("no migrations", err)
	}
	for _, name := range files {
		b, err := fs.ReadFile(f, name)
		if err != nil {
			t.Fatal(err)
		}
		q := strings.TrimPrefix(string(b), "-- +goose Up\n")
		r.exec(t, strings.Replace(q, "CREATE TABLE ", "CREATE TABLE IF NOT EXISTS "+db, 1))
	}
}

func brokers(t testing.TB) []string {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return fake.ListenAddrs()
}
