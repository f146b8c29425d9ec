package table

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/schemas/indexdef"
)

func cellsOf(cells []cellog.Cell) func(context.Context, cellog.ShardID) iter.Seq2[cellog.Cell, error] {
	return func(_ context.Context, shard cellog.ShardID) iter.Seq2[cellog.Cell, error] {
		return func(yield func(cellog.Cell, error) bool) {
			for _, c := range cells {
				if c.Shard == shard && !yield(c, nil) {
					return
				}
			}
		}
	}
}

// Each planted fault is found under its own name, and nothing else is.
func TestVerifyFindsPlantedFaults(t *testing.T) {
	w := newWorld(t, shards, 2)
	ix := mustIndex(t, "planted",
		indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "driver", Type: indexdef.String}, {Name: "fare", Type: indexdef.Decimal}}},
		indexdef.Column{Key: "STATUS", Fields: []indexdef.Field{{Name: "status", Type: indexdef.Int64}}})
	tables := newTables(t, w)
	if _, err := tables.Ensure(t.Context(), ix); err != nil {
		t.Fatal(err)
	}
	var cells []cellog.Cell
	for i := range 40 {
		row := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i)})
		for ref := range 3 {
			cells = append(cells, cell(row, "BASE", cellog.RefKey(ref), cellog.AddedID(len(cells)+1), fmt.Sprintf(`{"driver":"%d","fare":%d}`, (i+ref)%7, i)))
		}
		cells = append(cells, cell(row, "STATUS", 1, cellog.AddedID(len(cells)+1), `{"status":1}`))
		cells = append(cells, cell(row, "OTHER", 1, cellog.AddedID(len(cells)+1), `{}`))
	}
	victim := cells[0].Row
	home := cellog.ShardOf(victim, shards)
	value := indexer.StringValue("2") // of ref 2 of row 0
	entryAt := entryTable(ix, value.Shard(shards))
	for _, c := range []struct {
		name  string
		cells []cellog.Cell // more than those that were applied
		upTo  cellog.AddedID
		plant func(exec func(shard cellog.ShardID, query string, args ...any))
		want  indexer.Report
	}{
		{name: "clean", want: indexer.Report{Entries: 40}},
		{name: "missing entry", want: indexer.Report{Entries: 39, Missing: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(value.Shard(shards), "DELETE FROM "+entryAt+" WHERE row_key = ?", victim[:])
			}},
		{name: "stale entry", want: indexer.Report{Entries: 40, Stale: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(value.Shard(shards), "UPDATE "+entryAt+" SET f_fare = 99 WHERE row_key = ?", victim[:])
			}},
		{name: "entry that no update would change again", want: indexer.Report{Entries: 40, Stale: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(value.Shard(shards), "UPDATE "+entryAt+" SET version = UNHEX('ff0000000000000000') WHERE row_key = ?", victim[:])
			}},
		{name: "home row of a cell behind the last one", want: indexer.Report{Entries: 40, Extra: 1}, upTo: 1000,
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(0, "INSERT INTO "+homeTable(ix, 0)+" (row_key, version, ref_1, added_1) VALUES (?, REPEAT('\\0', 9), 1, 999)", make([]byte, 16))
			}},
		{name: "extra entry of another value", want: indexer.Report{Entries: 41, Extra: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				s := indexer.StringValue("0").Shard(shards)
				exec(s, "INSERT INTO "+entryTable(ix, s)+" (f_driver, row_key, version) VALUES ('0', ?, REPEAT('\\0', 9))", victim[:])
			}},
		{name: "extra entry of no row", want: indexer.Report{Entries: 41, Extra: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(0, "INSERT INTO "+entryTable(ix, 0)+" (f_driver, row_key, version) VALUES ('zz', ?, REPEAT('\\0', 9))", make([]byte, 16))
			}},
		{name: "home row lost", want: indexer.Report{Entries: 40, Missing: 1, Extra: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(home, "DELETE FROM "+homeTable(ix, home)+" WHERE row_key = ?", victim[:])
			}},
		{name: "home row of no cell", want: indexer.Report{Entries: 40, Extra: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(0, "INSERT INTO "+homeTable(ix, 0)+" (row_key, version, ref_1, added_1) VALUES (?, REPEAT('\\0', 9), 1, 1)", make([]byte, 16))
			}},
		{name: "home row and entry with wrong fields", want: indexer.Report{Entries: 40, Stale: 1},
			plant: func(exec func(cellog.ShardID, string, ...any)) {
				exec(value.Shard(shards), "UPDATE "+entryAt+" SET f_fare = 99 WHERE row_key = ?", victim[:])
				exec(home, "UPDATE "+homeTable(ix, home)+" SET f_fare = 99 WHERE row_key = ?", victim[:])
			}},
		{name: "cell not applied that moves the row", want: indexer.Report{Entries: 40, Missing: 1},
			cells: []cellog.Cell{cell(victim, "BASE", 9, 1000, `{"driver":"new","fare":1}`)}},
		{name: "cell not applied that changes the row", want: indexer.Report{Entries: 40, Stale: 1},
			cells: []cellog.Cell{cell(victim, "STATUS", 9, 1000, `{"status":9}`)}},
		{name: "row not applied", want: indexer.Report{Entries: 40, Missing: 1},
			cells: []cellog.Cell{cell(uuid.MustParse("00000000-0000-0000-0000-000000000009"), "BASE", 9, 1000, `{"driver":"q"}`)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.clear(t, ix)
			if err := apply(newTables(t, w), ix, cells); err != nil {
				t.Fatal(err)
			}
			if c.plant != nil {
				c.plant(func(shard cellog.ShardID, query string, args ...any) {
					t.Helper()
					res, err := w.db(int(shard)).Exec(query, args...)
					if err != nil {
						t.Fatal(err)
					}
					if n, _ := res.RowsAffected(); n != 1 {
						t.Fatalf("%s: %d rows", query, n)
					}
				})
			}
			var details []string
			var upTo func(cellog.ShardID) cellog.AddedID
			if c.upTo != 0 {
				upTo = func(cellog.ShardID) cellog.AddedID { return c.upTo }
			}
			got, err := indexer.Verify(t.Context(), indexer.VerifyConfig{Index: ix, Tables: tables, Cells: cellsOf(append(cells, c.cells...)), Wait: -1, Page: 7, UpTo: upTo,
				Detail: func(s string) { details = append(details, s) }})
			if err != nil {
				t.Fatal(err)
			}
			c.want.Index = ix
			if got != c.want {
				t.Errorf("%+v, want %+v: %q", got, c.want, details)
			}
		})
	}
}
