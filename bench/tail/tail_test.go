package tail

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
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

// trip is a body of about 600 bytes, like a taxi trip's.
func trip(r *rand.Rand) []byte {
	id := func() string {
		return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<12), r.IntN(1<<12), r.Int64N(1<<48))
	}
	at := time.Date(2026, 3, 1+r.IntN(28), r.IntN(24), r.IntN(60), r.IntN(60), 0, time.UTC)
	leg := func(from, to string) string {
		return fmt.Sprintf(`{"from":{"zone":"%s","city":"New York","lat":%.4f,"lng":%.4f},"to":{"zone":"%s","city":"New York","lat":%.4f,"lng":%.4f},"miles":%d.%d}`,
			from, 40+r.Float64(), -74+r.Float64(), to, 40+r.Float64(), -74+r.Float64(), r.IntN(20), r.IntN(10))
	}
	return fmt.Appendf(nil, `{"driver_partner_uuid":"%s","city_uuid":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","trip_created_at":"%s","dropoff_at":"%s","legs":[%s,%s],"fare":%d.%02d,"tip":%d.%02d,"tolls":0.0,"payment":"credit card","currency":"USD"}`,
		id(), at.Format(time.RFC3339), at.Add(20*time.Minute).Format(time.RFC3339),
		leg("Upper East Side North", "Long Island City"), leg("Long Island City", "Astoria"), r.IntN(60), r.IntN(100), r.IntN(10), r.IntN(100))
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
					js := trip(rnd)
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

var errDone = errors.New("done")

// readDrop reads, inflates and transcodes all cells on all cores.
func readDrop(b *testing.B, src cdc.Source, n int) time.Duration {
	b.Helper()
	began := time.Now()
	work := make(chan []cdc.Row, 64)
	var wg sync.WaitGroup
	var bad atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var buf []byte
			for rows := range work {
				for i := range rows {
					var err error
					if buf, err = body.AppendJSON(buf[:0], rows[i].Body, 8<<20); err != nil {
						bad.Add(1)
					}
				}
			}
		}()
	}
	seen := 0
	var batch []cdc.Row
	err := src.Run(b.Context(), "", func(t *cdc.Transaction) error {
		for _, c := range t.Changes {
			if c.Shard.Datastore == datastore {
				batch = append(batch, c.Rows...)
				seen += len(c.Rows)
			}
		}
		if len(batch) >= 128 || seen == n {
			work <- batch
			batch = nil
		}
		if seen == n {
			return errDone
		}
		return nil
	})
	close(work)
	wg.Wait()
	took := time.Since(began)
	if !errors.Is(err, errDone) || bad.Load() > 0 {
		b.Fatalf("%v, %d bad bodies", err, bad.Load())
	}
	return took
}

// fromStart lets a tailer without positions read the binlog from its first
// transaction on, as if there were no entity tables.
type fromStart struct{ cdc.Source }

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
