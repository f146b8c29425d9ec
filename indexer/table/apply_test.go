package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/schemas/indexdef"
)

func tripIndex(t testing.TB) *indexer.Index {
	return mustIndex(t, "driver_index",
		indexdef.Column{Key: "BASE", Fields: []indexdef.Field{
			{Name: "driver", Type: indexdef.UUID}, {Name: "fare", Type: indexdef.Decimal}, {Name: "pickup", Type: indexdef.DateTime},
			{Name: "name", Type: indexdef.String}, {Name: "n", Type: indexdef.Int64}, {Name: "f", Type: indexdef.Float64}, {Name: "b", Type: indexdef.Bool}}},
		indexdef.Column{Key: "STATUS", Fields: []indexdef.Field{{Name: "status", Type: indexdef.String}}})
}

func cell(row uuid.UUID, shards int, column string, ref cellog.RefKey, id cellog.AddedID, body string) cellog.Cell {
	return cellog.Cell{Key: cellog.Key{Row: row, Column: column, Ref: ref}, Datastore: "trips", Shard: cellog.ShardOf(row, shards),
		AddedID: id, Epoch: 1, CreatedAt: time.UnixMicro(1_700_000_000_000_000 + int64(id)).UTC(), Body: []byte(body)}
}

func TestSmoke(t *testing.T) {
	for _, servers := range []int{1, 2} {
		w := newWorld(t, 4, servers)
		tables := newTables(t, w)
		ix := tripIndex(t)
		for range 2 {
			if _, err := tables.Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
		}
		var cells []cellog.Cell
		for i := range 3 {
			row := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i)})
			d := uuid.NewSHA1(uuid.NameSpaceURL, []byte{byte(i)})
			cells = append(cells, cell(row, 4, "BASE", 1, cellog.AddedID(i+1), fmt.Sprintf(`{"driver":%q,"fare":12.50,"pickup":"2019-03-23 20:21:09.123456","name":"","n":-5,"f":1e-7,"b":true}`, d)))
			cells = append(cells, cell(row, 4, "STATUS", 2, cellog.AddedID(i+100), `{"status":"it's \" ok\\ \u0000"}`))
		}
		b := indexer.Collect(ix, cells)
		if err := tables.Apply(t.Context(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{b}}); err != nil {
			t.Fatal(err)
		}
		first := dump(t, w, ix)
		t.Log(first)
		if err := tables.Apply(t.Context(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{b}}); err != nil {
			t.Fatal(err)
		}
		if again := dump(t, w, ix); again != first {
			t.Fatalf("again:\n%s", again)
		}
		// A move, across shards; then null.
		row := cells[0].Row
		moved := []cellog.Cell{cell(row, 4, "BASE", 7, 1000, `{"driver":"00000000-0000-0000-0000-000000000001","fare":"1"}`)}
		if err := tables.Apply(t.Context(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{indexer.Collect(ix, moved)}}); err != nil {
			t.Fatal(err)
		}
		t.Log(dump(t, w, ix))
		moved = []cellog.Cell{cell(row, 4, "BASE", 8, 1001, `{"driver":null,"fare":"1"}`)}
		if err := tables.Apply(t.Context(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{indexer.Collect(ix, moved)}}); err != nil {
			t.Fatal(err)
		}
		t.Log(dump(t, w, ix))
	}
}
