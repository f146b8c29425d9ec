package tail

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/bench/workload"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage/mysql"
)

func TestMain(m *testing.M) {
	code := m.Run()
	mysqltest.Stop()
	kafkatest.Shutdown()
	os.Exit(code)
}

const (
	shards    = 16
	datastore = "trips"
	perTx     = 8 // cells in a MySQL transaction
)

func cells(b *testing.B) int {
	text := os.Getenv("CELLOG_BENCH_CELLS")
	if text == "" {
		return 100_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < perTx {
		b.Fatalf("CELLOG_BENCH_CELLS=%s: want a number from %d on", text, perTx)
	}
	return n / perTx * perTx
}

// fill writes n cells in transactions of perTx and returns their mean size as
// stored and as JSON.
func fill(b *testing.B, node *mysqltest.Node, n int) (stored, text int) {
	b.Helper()
	node.CreateShards(b, datastore, shards)
	db := node.DB(b, "")
	var storedBytes, textBytes atomic.Int64
	var g errgroup.Group
	for w := range 4 {
		g.Go(func() error {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			last := [shards]int{}
			for i := w; i < n/perTx; i += 4 {
				// A shard belongs to one writer, so it can count by itself.
				shard := (i % shards / 4 * 4) + w
				name := cellog.DatabaseName(datastore, cellog.ShardID(shard))
				q := strings.Builder{}
				fmt.Fprintf(&q, "BEGIN; UPDATE %s.shard_log SET last_added_id = last_added_id + %d; INSERT INTO %s.entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) VALUES ", name, perTx, name)
				var args []any
				for j := range perTx {
					last[shard]++
					row := make([]byte, 16)
					for k := range row {
						row[k] = byte(rnd.Uint32())
					}
					js := workload.Trip(rnd)
					st, err := body.Encode(nil, js, body.Limits{})
					if err != nil {
						return err
					}
					storedBytes.Add(int64(len(st)))
					textBytes.Add(int64(len(js)))
					if j > 0 {
						q.WriteByte(',')
					}
					q.WriteString("(?,1,?,'BASE',1,?,UTC_TIMESTAMP(6))")
					args = append(args, last[shard], row, st)
				}
				q.WriteString("; COMMIT")
				if _, err := db.Exec(q.String(), args...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return int(storedBytes.Load()) / n, int(textBytes.Load()) / n
}

type entities struct{ db *sql.DB }

func (e entities) Heads(context.Context, func(cdc.Head) error) error { return nil }

func (e entities) ReadEntity(ctx context.Context, ds string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	return mysql.ReadEntity(ctx, e.db, ds, shard, after, limit)
}

func (e entities) Datastore(context.Context, string) (int, int, bool, error) {
	return shards, shards, true, nil
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// readDrop reads, inflates and transcodes all cells on all cores.
func readDrop(b *testing.B, src cdc.Source, n int) time.Duration {
	b.Helper()
	began := time.Now()
	var done atomic.Int64
	if err := workload.Drop(b.Context(), src, datastore, int64(n), true, &done); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// fromStart lets a tailer without positions read the binlog from its first
// transaction on, as if there were no entity tables.
type fromStart struct{ cdc.Source }

// Now is before the first transaction.
func (fromStart) Now(context.Context) (string, error) { return "", nil }

// BenchmarkDrain drains the backlog once per iteration, to a new set of topics.
func BenchmarkDrain(b *testing.B) {
	n := cells(b)
	node := mysqltest.Start(b, "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0")
	began := time.Now()
	stored, text := fill(b, node, n)
	b.Logf("%s: %d cells of %d bytes stored, %d as JSON, written in %s", node.Version(), n, stored, text, time.Since(began).Round(time.Millisecond))
	a := mysqltest.Accounts.Tailer
	src, err := binlog.New(binlog.Config{Addr: node.Addr(), User: a.User, Password: a.Password})
	if err != nil {
		b.Fatal(err)
	}
	db := node.As(b, a, "")
	b.ResetTimer()
	for range b.N {
		before := cpu()
		bare := readDrop(b, src, n)
		bareCPU := cpu() - before

		pub, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: kafkatest.Start(b).Addrs()}, Cluster: "c1", Prefix: kafkatest.Prefix(b)})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := pub.WriteFirstOpen(b.Context(), "n1", "u1"); err != nil {
			b.Fatal(err)
		}
		tl, err := cdc.New(cdc.Config{Cluster: "c1", Publisher: pub, Nodes: func(context.Context) ([]cdc.Node, error) {
			return []cdc.Node{{Name: "n1", Master: true, Source: fromStart{src}, Entities: entities{db}}}, nil
		}})
		if err != nil {
			b.Fatal(err)
		}
		before = cpu()
		began := time.Now()
		if err := tl.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		for tl.Status().Cells < int64(n) {
			if s := tl.Status(); len(s.Stopped) > 0 || time.Since(began) > 10*time.Minute {
				b.Fatalf("%+v", s)
			}
			time.Sleep(time.Millisecond)
		}
		took := time.Since(began)
		used := cpu() - before
		if err := tl.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
		pub.Close()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		rate, bareRate := float64(n)/took.Seconds(), float64(n)/bare.Seconds()
		b.ReportMetric(rate, "cells/s")
		b.ReportMetric(bareRate, "bare-cells/s")
		b.ReportMetric(rate/bareRate, "ratio")
		b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/cell")
		b.ReportMetric(float64(bareCPU.Nanoseconds())/float64(n), "bare-cpu-ns/cell")
		b.ReportMetric(float64(mem.Sys)/(1<<20), "MiB")
	}
}
