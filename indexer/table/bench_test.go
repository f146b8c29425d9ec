package table

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/schemas/indexdef"
)

func benchCells(n, shards, from int) []cellog.Cell {
	cells := make([]cellog.Cell, n)
	for i := range cells {
		row := uuid.New()
		driver, city := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i), byte(i >> 8)}), uuid.NewSHA1(uuid.NameSpaceURL, []byte{byte(i)})
		body := fmt.Sprintf(`{"rider":"%s","driver_partner_uuid":"%s","city_uuid":"%s","trip_created_at":"2019-03-23 20:21:09","fare":12.95,"route":"%0400d"}`, row, driver, city, i)
		cells[i] = cell(row, "BASE", 1, cellog.AddedID(from+i+1), body)
		cells[i].Shard = cellog.ShardOf(row, shards)
	}
	return cells
}

// Cells per second into one index, in batches, over 16 shards on one and on two
// servers; direct is the same entries by plain multi-row upserts, a transaction
// per batch.
func BenchmarkApply(b *testing.B) {
	for _, servers := range []int{1, 2} {
		for _, batch := range []int{20, 100, 1000, 4000} {
			for _, direct := range []bool{false, true} {
				name := fmt.Sprintf("servers=%d/batch=%d/direct=%t", servers, batch, direct)
				b.Run(name, func(b *testing.B) { benchApply(b, servers, batch, direct) })
			}
		}
	}
}

func benchApply(b *testing.B, servers, batch int, direct bool) {
	const shards = 16
	w := newWorld(b, shards, servers)
	ix := mustIndex(b, "driver_partner_index", indexdef.Column{Key: "BASE", Fields: []indexdef.Field{
		{Name: "driver_partner_uuid", Type: indexdef.UUID}, {Name: "city_uuid", Type: indexdef.UUID}, {Name: "trip_created_at", Type: indexdef.DateTime}}})
	tables := newTables(b, w)
	if _, err := tables.Ensure(b.Context(), ix); err != nil {
		b.Fatal(err)
	}
	done, cpu := 0, w.cpu(b)
	for b.Loop() {
		b.StopTimer()
		cells := benchCells(batch, shards, done)
		b.StartTimer()
		part := indexer.Collect(ix, cells)
		part.Progress = []indexer.Progress{{Topic: "trips.BASE", Partition: 0, Next: int64(done)}}
		var err error
		if direct {
			err = applyDirect(b.Context(), w, part)
		} else {
			err = tables.Apply(b.Context(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{part}})
		}
		if err != nil {
			b.Fatal(err)
		}
		done += batch
	}
	b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "cells/s")
	b.ReportMetric(float64((w.cpu(b)-cpu).Microseconds())/float64(done), "server-µs/cell")
}

// applyDirect writes a batch's entries and nothing else.
func applyDirect(ctx context.Context, w *world, part indexer.Part) error {
	byServer := make([][]entry, len(w.dbs))
	for i := range part.Rows {
		r := &row{ix: part.Index, in: &part.Rows[i], state: part.Rows[i].State}
		e := entry{row: r, value: r.state.Fields[0], shard: r.state.Fields[0].Shard(w.shards)}
		byServer[int(e.shard)%len(w.dbs)] = append(byServer[int(e.shard)%len(w.dbs)], e)
	}
	for i, es := range byServer {
		tx, err := w.dbs[i].BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := execAll(ctx, tx, entryStmts(es), ""); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// The time that one small batch of three indexes takes, as when cells trickle
// in: what an index adds to a cell's way.
func BenchmarkApplySmall(b *testing.B) {
	for _, servers := range []int{1, 2} {
		for _, batch := range []int{1, 40} {
			b.Run(fmt.Sprintf("servers=%d/batch=%d", servers, batch), func(b *testing.B) {
				const shards = 16
				w := newWorld(b, shards, servers)
				tables := newTables(b, w)
				var indexes []*indexer.Index
				for _, field := range []string{"driver_partner_uuid", "city_uuid", "rider"} {
					ix := mustIndex(b, "by_"+field, indexdef.Column{Key: "BASE", Fields: []indexdef.Field{
						{Name: field, Type: indexdef.UUID}, {Name: "trip_created_at", Type: indexdef.DateTime}, {Name: "fare", Type: indexdef.Decimal}}})
					if _, err := tables.Ensure(b.Context(), ix); err != nil {
						b.Fatal(err)
					}
					indexes = append(indexes, ix)
				}
				done, cpu := 0, w.cpu(b)
				for b.Loop() {
					b.StopTimer()
					cells := benchCells(batch, shards, done)
					b.StartTimer()
					var parts []indexer.Part
					for _, ix := range indexes {
						part := indexer.Collect(ix, cells)
						part.Progress = []indexer.Progress{{Topic: "trips.BASE", Partition: 0, Next: int64(done)}}
						parts = append(parts, part)
					}
					if err := tables.Apply(b.Context(), indexer.Batch{Datastore: "trips", Parts: parts}); err != nil {
						b.Fatal(err)
					}
					done += batch
				}
				b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "cells/s")
				b.ReportMetric(float64((w.cpu(b)-cpu).Microseconds())/float64(done), "server-µs/cell")
			})
		}
	}
}
