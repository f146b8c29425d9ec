package tail

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// BenchmarkManyShards makes a datastore of 16 shards and one of 4,096, each on a
// server of its own, fills them with as many cells, drains them, and starts the
// tailer again, which then checks each shard's last cell on both sides.
func BenchmarkManyShards(b *testing.B) {
	n := cells(b)
	for range b.N {
		few, many := manyShards(b, 16, n), manyShards(b, manyCount(b), n)
		b.ReportMetric(few, "16-cells/s")
		b.ReportMetric(many, "many-cells/s")
		b.ReportMetric(many/few, "ratio")
	}
}

func manyCount(b *testing.B) int {
	text := os.Getenv("CELLOG_BENCH_SHARDS")
	if text == "" {
		return 4096
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 4 || n%4 != 0 {
		b.Fatalf("CELLOG_BENCH_SHARDS=%s: want a multiple of 4", text)
	}
	return n
}

func manyShards(b *testing.B, count, n int) (rate float64) {
	node := mysqltest.Start(b, "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0")
	began := time.Now()
	a := mysqltest.Accounts.Admin
	create := func() {
		err := mysql.CreateDatastore(b.Context(), mysql.CreateConfig{Name: datastore, Shards: count, Clusters: []storage.Cluster{{Name: "c1",
			Nodes: []storage.Node{{Name: "n1", Addr: node.Addr(), User: a.User, Password: a.Password}}}}})
		if err != nil {
			b.Fatal(err)
		}
	}
	create()
	made := time.Since(began)
	began = time.Now()
	create()
	again := time.Since(began)
	began = time.Now()
	var all []cellog.ShardID
	for s := range cellog.ShardID(count) {
		all = append(all, s)
	}
	if err := mysqlaccounts.GrantDatastore(b.Context(), node.DB(b, ""), mysqltest.Accounts, datastore, all); err != nil {
		b.Fatal(err)
	}
	granted := time.Since(began)
	fillShards(b, node, count, n)

	t := mysqltest.Accounts.Tailer
	src, err := binlog.New(binlog.Config{Addr: node.Addr(), User: t.User, Password: t.Password})
	if err != nil {
		b.Fatal(err)
	}
	prefix := kafkatest.Prefix(b)
	tn := &tailed{addrs: kafkatest.Start(b).Addrs(), prefix: prefix, db: node.As(b, t, ""), shards: count}
	first := runTailer(b, tn, cdc.Node{Name: "n1", Master: true, Source: fromStart{src}, Entities: entities{db: tn.db, shards: count}}, n)
	second := runTailer(b, tn, cdc.Node{Name: "n1", Master: true, Source: src, Entities: entities{db: tn.db, shards: count, heads: true}}, 0)
	rate = float64(n) / first.drained.Seconds()
	b.Logf("%s, %d shards: made in %.1f s, once more in %.1f s, grants in %.1f s; %.0f cells/s, %.1f µs of CPU a cell; first start %.2f s, second one %.2f s and %d statements; %d MiB resident",
		node.Version(), count, made.Seconds(), again.Seconds(), granted.Seconds(), rate, float64(first.cpu.Microseconds())/float64(n), first.start.Seconds(), second.start.Seconds(), second.statements, resident(b))
	return rate
}

type tailed struct {
	addrs  []string
	prefix string
	db     *sql.DB
	shards int
}

type ran struct {
	start, drained, cpu time.Duration
	statements          int
}

// runTailer runs a tailer until it streams and has published n cells.
func runTailer(b *testing.B, tn *tailed, node cdc.Node, n int) (r ran) {
	b.Helper()
	pub, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: tn.addrs}, Cluster: "c1", Prefix: tn.prefix})
	if err != nil {
		b.Fatal(err)
	}
	defer pub.Close()
	if _, err := pub.WriteFirstOpen(b.Context(), "n1", "u1"); err != nil {
		b.Fatal(err)
	}
	tl, err := cdc.New(cdc.Config{Cluster: "c1", Publisher: pub, Nodes: func(context.Context) ([]cdc.Node, error) { return []cdc.Node{node}, nil }})
	if err != nil {
		b.Fatal(err)
	}
	selects, before, began := statements(b, tn.db), cpu(), time.Now()
	if err := tl.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	for ; tl.Status().State != "streaming" || tl.Status().Cells < int64(n); time.Sleep(time.Millisecond) {
		s := tl.Status()
		if s.State == "streaming" && r.start == 0 {
			r.start = time.Since(began)
		}
		if len(s.Stopped) > 0 || time.Since(began) > 10*time.Minute {
			b.Fatalf("%+v", s)
		}
	}
	if r.start == 0 {
		r.start = time.Since(began)
	}
	r.drained, r.cpu, r.statements = time.Since(began)-r.start, cpu()-before, statements(b, tn.db)-selects
	if err := tl.Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
	return r
}

// statements is how many SELECTs the server has carried out.
func statements(b *testing.B, db *sql.DB) (n int) {
	b.Helper()
	var name string
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_select'").Scan(&name, &n); err != nil {
		b.Fatal(err)
	}
	return n
}

// resident is this process's memory, an embedded broker's included, in MiB.
func resident(b *testing.B) int {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb >> 10
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
