package tail

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// entities reads a server's tables as the joining code does; without heads it
// shows a tailer no shard that the binlog did not name.
type entities struct {
	db     *sql.DB
	shards int
	heads  bool
}

func (e entities) Heads(ctx context.Context, f func(cdc.Head) error) error {
	if !e.heads {
		return nil
	}
	heads, err := mysql.Heads(ctx, e.db)
	if err != nil {
		return err
	}
	for _, h := range heads {
		if err := f(cdc.Head{Shard: cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}, Epoch: h.Epoch, Term: h.Term, Last: h.Last}); err != nil {
			return err
		}
	}
	return nil
}

func (e entities) ReadEntity(ctx context.Context, ds string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	return mysql.ReadEntity(ctx, e.db, ds, shard, after, limit)
}

func (e entities) ScanEntity(ctx context.Context, k cdc.ShardKey, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error {
	err := mysql.ScanEntity(ctx, e.db, k.Datastore, k.Shard, after, upTo, limit, f)
	if errors.Is(err, storage.ErrDamaged) {
		return fmt.Errorf("%w: %w", cdc.ErrShard, err)
	}
	return err
}

func (e entities) CellsAt(ctx context.Context, at map[cdc.ShardKey]cellog.AddedID) (map[cdc.ShardKey]cellog.Cell, error) {
	var places []mysql.Place
	for k, id := range at {
		places = append(places, mysql.Place{Datastore: k.Datastore, Shard: k.Shard, AddedID: id})
	}
	out := make(map[cdc.ShardKey]cellog.Cell)
	err := mysql.CellsAt(ctx, e.db, places, func(p mysql.Place, c cellog.Cell) {
		out[cdc.ShardKey{Datastore: p.Datastore, Shard: p.Shard}] = c
	})
	return out, err
}

func (e entities) Datastore(context.Context, string) (int, int, bool, error) {
	return e.shards, cellog.DefaultPartitions(e.shards), true, nil
}

// drain runs a new tailer of a node, to new topics, until it has published n
// cells. It returns the time and this process's CPU that it took.
func drain(b *testing.B, node cdc.Node, n int) (took, used time.Duration) {
	b.Helper()
	pub, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: kafkatest.Start(b).Addrs()}, Cluster: "c1", Prefix: kafkatest.Prefix(b)})
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
	before, began := cpu(), time.Now()
	if err := tl.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	for tl.Status().Cells < int64(n) {
		if s := tl.Status(); len(s.Stopped) > 0 || time.Since(began) > 10*time.Minute {
			b.Fatalf("%+v", s)
		}
		time.Sleep(time.Millisecond)
	}
	took, used = time.Since(began), cpu()-before
	if err := tl.Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
	return took, used
}

// BenchmarkBackfill publishes all cells from the entity tables, as where the
// binlog is gone, beside what a bare loop does that selects the same rows in the
// same order over the same driver and drops them.
func BenchmarkBackfill(b *testing.B) {
	n := cells(b)
	node := mysqltest.Start(b, "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0")
	stored, text := fill(b, node, n)
	b.Logf("%s: %d cells of %d bytes stored, %d as JSON", node.Version(), n, stored, text)
	a := mysqltest.Accounts.Tailer
	src, err := binlog.New(binlog.Config{Addr: node.Addr(), User: a.User, Password: a.Password})
	if err != nil {
		b.Fatal(err)
	}
	db := node.As(b, a, "")
	selectDrop(b, db, n) // warms the server's cache for both
	b.ResetTimer()
	for range b.N {
		bare := selectDrop(b, db, n)
		took, used := drain(b, cdc.Node{Name: "n1", Master: true, Source: src, Entities: entities{db: db, shards: shards, heads: true}}, n)
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		rate, bareRate := float64(n)/took.Seconds(), float64(n)/bare.Seconds()
		b.ReportMetric(rate, "cells/s")
		b.ReportMetric(bareRate, "bare-cells/s")
		b.ReportMetric(rate/bareRate, "ratio")
		b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/cell")
		b.ReportMetric(float64(mem.Sys)/(1<<20), "MiB")
	}
}

// selectDrop streams all shards' rows, one after the other, and drops them.
func selectDrop(b *testing.B, db *sql.DB, n int) time.Duration {
	b.Helper()
	began, seen := time.Now(), 0
	for shard := range shards {
		rows, err := db.QueryContext(b.Context(), "SELECT added_id, epoch, row_key, column_name, ref_key, body, created_at, traceparent FROM "+
			cellog.DatabaseName(datastore, cellog.ShardID(shard))+".entity ORDER BY added_id")
		if err != nil {
			b.Fatal(err)
		}
		raw := make([]sql.RawBytes, 8)
		dest := make([]any, len(raw))
		for i := range raw {
			dest[i] = &raw[i]
		}
		for ; rows.Next(); seen++ {
			if err := rows.Scan(dest...); err != nil {
				b.Fatal(err)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(began)
	if seen != n {
		b.Fatalf("%d rows, want %d", seen, n)
	}
	return took
}
