package tail

import (
	"context"
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
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
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
	return fillShards(b, node, shards, n)
}

// fillShards is fill for shards that are there; so many must be a multiple of 4.
func fillShards(b *testing.B, node *mysqltest.Node, shards, n int) (stored, text int) {
	b.Helper()
	db := node.DB(b, "")
	var storedBytes, textBytes atomic.Int64
	var g errgroup.Group
	for w := range 4 {
		g.Go(func() error {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			last := make([]int, shards)
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

		took, used := drain(b, cdc.Node{Name: "n1", Master: true, Source: fromStart{src}, Entities: entities{db: db, shards: shards}}, n)
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
