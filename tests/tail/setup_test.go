package tail

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/sqlfiles"
)

var nth atomic.Int64

func newRig(t testing.TB, shards int) *rig {
	t.Helper()
	a := account{Addr: os.Getenv("TAIL_ADDR"), User: "root"}
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	n := nth.Add(1)
	name := fmt.Sprintf("t%dx%d", time.Now().UnixNano()%1e9, n)
	r := &rig{account: a, db: open(t, a), kafka: kafka.Config{Addrs: fake.ListenAddrs()}, cluster: "c1", prefix: "", store: name, shards: shards}
	exec := func(q string, args ...any) {
		t.Helper()
		if _, err := r.db.Exec(q, args...); err != nil {
			t.Fatal(q, err)
		}
	}
	exec("CREATE DATABASE IF NOT EXISTS cellog_meta")
	exec("CREATE DATABASE IF NOT EXISTS cellog_buffer")
	migrate := func(f fs.FS, db string) {
		files, _ := fs.Glob(f, "*.sql")
		for _, name := range files {
			b, _ := fs.ReadFile(f, name)
			q := strings.ReplaceAll(string(b), "-- +goose Up\n", "")
			q = strings.Replace(q, "CREATE TABLE ", "CREATE TABLE IF NOT EXISTS "+db, 1)
			exec(q)
		}
	}
	migrate(sqlfiles.Server(), "")
	exec("INSERT INTO cellog_meta.datastores VALUES (?, ?, ?, NOW(6))", name, shards, cellog.DefaultPartitions(shards))
	for i := range shards {
		db := cellog.DatabaseName(name, cellog.ShardID(i))
		exec("CREATE DATABASE " + db)
		migrate(sqlfiles.Shard(), db+".")
		exec("INSERT INTO " + db + ".shard_log VALUES (1, 1, 1, 'open', 0, '2000-01-01')")
	}
	r.firstOpen(t)
	return r
}
