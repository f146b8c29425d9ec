package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/schemas/indexdef"
)

const shards = 4

func twoColumns(t testing.TB, name string) *indexer.Index {
	return mustIndex(t, name,
		indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "driver", Type: indexdef.String}, {Name: "fare", Type: indexdef.Decimal}}},
		indexdef.Column{Key: "STATUS", Fields: []indexdef.Field{{Name: "status", Type: indexdef.Int64}}})
}

// genCells makes the cells of a few rows: several versions of two columns,
// with drivers that change, come back and vanish.
func genCells(t *rapid.T) []cellog.Cell {
	var cells []cellog.Cell
	for r := range rapid.IntRange(1, 4).Draw(t, "rows") {
		row := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(r)})
		refs := rapid.SliceOfNDistinct(rapid.Int64Range(-2, 6), 0, 5, rapid.ID).Draw(t, "refs")
		if rapid.Bool().Draw(t, "extreme") {
			refs = append(refs, -1<<63, 1<<63-1)
		}
		for _, ref := range refs {
			driver := rapid.SampledFrom([]string{`"a"`, `"b"`, `"c "`, `"c"`, `null`, `7`}).Draw(t, "driver")
			fare := rapid.SampledFrom([]string{`1`, `2.50`, `"3"`, `true`}).Draw(t, "fare")
			cells = append(cells, cell(row, "BASE", cellog.RefKey(ref), cellog.AddedID(len(cells)+1), `{"driver":`+driver+`,"fare":`+fare+`}`))
			if rapid.Bool().Draw(t, "status") {
				cells = append(cells, cell(row, "STATUS", cellog.RefKey(ref), cellog.AddedID(len(cells)+1), fmt.Sprintf(`{"status":%d}`, ref%3)))
			}
		}
	}
	return cells
}

func cell(row uuid.UUID, column string, ref cellog.RefKey, id cellog.AddedID, body string) cellog.Cell {
	return cellog.Cell{Key: cellog.Key{Row: row, Column: column, Ref: ref}, Datastore: "trips", Shard: cellog.ShardOf(row, shards),
		AddedID: id, Epoch: 1, CreatedAt: time.UnixMicro(1_700_000_000_000_000 + int64(id)).UTC(), Body: []byte(body)}
}

func apply(tables *Tables, ix *indexer.Index, cells []cellog.Cell) error {
	part := indexer.Collect(ix, cells)
	part.Progress = []indexer.Progress{{Topic: "trips.BASE", Partition: 0, Next: int64(len(cells))}}
	return tables.Apply(context.Background(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{part}})
}

// applyHard applies until it succeeds. Like the indexer it waits a random time
// between attempts: without, two that refuse each other could do so for ever.
func applyHard(tables *Tables, ix *indexer.Index, cells []cellog.Cell) error {
	var err error
	for i := range 200 {
		if err = apply(tables, ix, cells); err == nil {
			return nil
		}
		if !errors.Is(err, errFailpoint) {
			time.Sleep(rand.N(time.Duration(i+1) * 5 * time.Millisecond))
		}
	}
	return err
}

// model says which entries there must be: an independent statement of the
// rules, per row "value fare status".
func model(cells []cellog.Cell) []string {
	type key struct {
		row    uuid.UUID
		column string
	}
	newest := map[key]cellog.Cell{}
	rows := map[uuid.UUID]bool{}
	for _, c := range cells {
		k := key{c.Row, c.Column}
		if have, ok := newest[k]; !ok || c.Ref > have.Ref {
			newest[k] = c
		}
		rows[c.Row] = true
	}
	var out []string
	for row := range rows {
		var base struct{ Driver, Fare any }
		var status struct{ Status any }
		if c, ok := newest[key{row, "BASE"}]; ok {
			_ = json.Unmarshal(c.Body, &base)
		}
		if c, ok := newest[key{row, "STATUS"}]; ok {
			_ = json.Unmarshal(c.Body, &status)
		}
		driver, ok := base.Driver.(string)
		if !ok {
			continue
		}
		fare := map[any]string{1.0: "1.0000000000", 2.5: "2.5000000000", "3": "3.0000000000", true: "NULL", nil: "NULL"}[base.Fare]
		st := "NULL"
		if n, ok := status.Status.(float64); ok {
			st = fmt.Sprint(int(n))
		}
		out = append(out, fmt.Sprintf("%s|%q|%s|%s", row, driver, fare, st))
	}
	slices.Sort(out)
	return out
}

func entriesOf(t testing.TB, w *world, ix *indexer.Index) []string {
	var out []string
	for s := range w.shards {
		rows, err := w.db(s).Query("SELECT row_key, f_driver, COALESCE(f_fare, 'NULL'), COALESCE(f_status, 'NULL') FROM " + entryTable(ix, cellog.ShardID(s)))
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var id uuid.UUID
			var driver, fare, status string
			if err := rows.Scan(&id, &driver, &fare, &status); err != nil {
				t.Fatal(err)
			}
			if got := indexer.StringValue(driver).Shard(w.shards); got != cellog.ShardID(s) {
				t.Fatalf("entry of %q is in shard %d, want %d", driver, s, got)
			}
			out = append(out, fmt.Sprintf("%s|%q|%s|%s", id, driver, fare, status))
		}
		rows.Close()
	}
	slices.Sort(out)
	return out
}

// G8: the final bytes of the tables do not depend on order, repetition, batch
// size, crashes between any two steps, or a second indexer that interferes.
func TestTablesAreAFunctionOfTheCells(t *testing.T) {
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			w := newWorld(t, shards, servers)
			ix := twoColumns(t, "fn")
			if _, err := newTables(t, w).Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				cells := genCells(rt)
				if len(cells) == 0 {
					return
				}
				w.clear(t, ix)
				if err := apply(newTables(t, w), ix, cells); err != nil {
					rt.Fatal(err)
				}
				want := dump(t, w, ix)
				if got, model := entriesOf(t, w, ix), model(cells); !slices.Equal(got, model) {
					rt.Fatalf("entries\n%s\nmodel\n%s", strings.Join(got, "\n"), strings.Join(model, "\n"))
				}

				w.clear(t, ix)
				queue := append(slices.Clone(cells), rapid.SliceOfN(rapid.SampledFrom(cells), 0, 10).Draw(rt, "repeats")...)
				queue = rapid.Permutation(queue).Draw(rt, "order")
				two := []*Tables{newTables(t, w), newTables(t, w)}
				crashes := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 12).Draw(rt, "crashes")
				failpoint.Set(func(string) bool {
					if len(crashes) == 0 {
						return false
					}
					n := crashes[0]
					crashes = crashes[1:]
					return n == 0
				})
				defer failpoint.Set(nil)
				for len(queue) > 0 {
					n := rapid.IntRange(1, len(queue)).Draw(rt, "batch")
					who := rapid.IntRange(0, 1).Draw(rt, "indexer")
					if err := applyHard(two[who], ix, queue[:n]); err != nil {
						rt.Fatal(err)
					}
					queue = queue[n:]
				}
				if got := dump(t, w, ix); got != want {
					rt.Fatalf("got\n%s\nwant\n%s", got, want)
				}
				failpoint.Set(nil)
				// From zero once more.
				if err := apply(two[0], ix, cells); err != nil {
					rt.Fatal(err)
				}
				if got := dump(t, w, ix); got != want {
					rt.Fatalf("after replay\n%s\nwant\n%s", got, want)
				}
			})
		})
	}
}

// Two indexers apply all cells at the same time, each in an order of its own.
func TestTwoIndexersAtOnce(t *testing.T) {
	w := newWorld(t, shards, 2)
	ix := twoColumns(t, "two")
	if _, err := newTables(t, w).Ensure(t.Context(), ix); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 5 {
		var cells []cellog.Cell
		for i := range 60 {
			row := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(rnd.IntN(5))})
			column, body := "BASE", fmt.Sprintf(`{"driver":"%c","fare":1}`, 'a'+rnd.IntN(5))
			if rnd.IntN(2) == 0 {
				column, body = "STATUS", fmt.Sprintf(`{"status":%d}`, i)
			}
			cells = append(cells, cell(row, column, cellog.RefKey(i), cellog.AddedID(i+1), body))
		}
		w.clear(t, ix)
		if err := apply(newTables(t, w), ix, cells); err != nil {
			t.Fatal(err)
		}
		want := dump(t, w, ix)
		w.clear(t, ix)
		var wg sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			order := slices.Clone(cells)
			rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			tables := newTables(t, w)
			wg.Go(func() {
				for chunk := range slices.Chunk(order, 7) {
					if errs[i] = applyHard(tables, ix, chunk); errs[i] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if got := dump(t, w, ix); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// An indexer that is frozen between its home rows and its entries, and thawed
// after another one has moved the row on, must not bring the old entry back.
func TestThawedIndexerChangesNothing(t *testing.T) {
	for _, point := range []string{"indexer/after-home", "indexer/after-entries", "indexer/after-removals"} {
		t.Run(strings.TrimPrefix(point, "indexer/"), func(t *testing.T) {
			w := newWorld(t, shards, 2)
			ix := twoColumns(t, "thaw")
			frozen, other := newTables(t, w), newTables(t, w)
			if _, err := frozen.Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
			row := uuid.MustParse("00000000-0000-0000-0000-00000000000a")
			old := cell(row, "BASE", 1, 1, `{"driver":"a","fare":1}`)
			newer := cell(row, "BASE", 2, 2, `{"driver":"b","fare":2}`)
			at, thaw := make(chan struct{}), make(chan struct{})
			var first atomic.Bool
			failpoint.Set(func(name string) bool {
				if name == point && first.CompareAndSwap(false, true) {
					close(at)
					<-thaw
				}
				return false
			})
			defer failpoint.Set(nil)
			done := make(chan error, 1)
			go func() { done <- apply(frozen, ix, []cellog.Cell{old}) }()
			<-at
			if err := apply(other, ix, []cellog.Cell{newer}); err != nil {
				t.Fatal(err)
			}
			want := dump(t, w, ix)
			close(thaw)
			// Later on it has nothing left to write that is not true.
			if err := <-done; !errors.Is(err, ErrRefused) && (err != nil || point == "indexer/after-home") {
				t.Errorf("thawed: %v, want ErrRefused", err)
			}
			if got := dump(t, w, ix); got != want {
				t.Errorf("thawed changed the tables to\n%s\nfrom\n%s", got, want)
			}
			if err := applyHard(frozen, ix, []cellog.Cell{old}); err != nil {
				t.Fatal(err)
			}
			if got := dump(t, w, ix); got != want {
				t.Errorf("again changed the tables to\n%s\nfrom\n%s", got, want)
			}
		})
	}
}

// A closed shard, or one of another epoch, takes nothing.
func TestClosedShardTakesNothing(t *testing.T) {
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			w := newWorld(t, shards, servers)
			ix := twoColumns(t, "closed")
			tables := newTables(t, w)
			if _, err := tables.Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
			c := cell(uuid.MustParse("00000000-0000-0000-0000-00000000000a"), "BASE", 1, 1, `{"driver":"a","fare":1}`)
			for _, set := range []string{"state = 'moving:c2'", "state = 'closed'", "state = 'open', epoch = 2"} {
				for s := range shards {
					if _, err := w.admin[s%servers].Exec("UPDATE " + cellog.DatabaseName("trips", cellog.ShardID(s)) + ".shard_log SET " + set); err != nil {
						t.Fatal(err)
					}
				}
				if err := apply(tables, ix, []cellog.Cell{c}); !errors.Is(err, ErrStaleRoute) {
					t.Errorf("%s: %v, want ErrStaleRoute", set, err)
				}
				if got := dump(t, w, ix); got != "" {
					t.Errorf("%s: written %s", set, got)
				}
			}
			if err := tables.Settled(t.Context(), ix); err != nil {
				t.Errorf("before the route has changed: %v", err)
			}
			w.epoch = 2
			// What is on a promoted server is of an earlier time: the index must
			// ask for its progress first, which begins with Ensure.
			if err := apply(tables, ix, []cellog.Cell{c}); !errors.Is(err, indexer.ErrMoved) {
				t.Errorf("%v, want ErrMoved", err)
			}
			if err := tables.Settled(t.Context(), ix); !errors.Is(err, indexer.ErrMoved) {
				t.Errorf("%v, want ErrMoved", err)
			}
			if got := dump(t, w, ix); got != "" {
				t.Errorf("written %s", got)
			}
			if _, err := tables.Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
			if err := apply(tables, ix, []cellog.Cell{c}); err != nil {
				t.Error(err)
			}
		})
	}
}

// Progress and applied marks are kept with the entries.
func TestMarks(t *testing.T) {
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			w := newWorld(t, shards, servers)
			ix := twoColumns(t, "marks")
			tables := newTables(t, w)
			if _, err := tables.Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
			progress := func() int64 {
				t.Helper()
				n, err := tables.Progress(t.Context(), ix, "trips.BASE", 3)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			if got := progress(); got != 0 {
				t.Errorf("progress of nothing: %d", got)
			}
			for i, next := range []int64{10, 25, 20} {
				part := indexer.Collect(ix, []cellog.Cell{cell(uuid.New(), "BASE", 1, cellog.AddedID(i+1), `{"driver":"x"}`)})
				part.Progress = []indexer.Progress{{Topic: "trips.BASE", Partition: 3, Next: next}}
				if err := tables.Apply(t.Context(), indexer.Batch{Datastore: "trips", Parts: []indexer.Part{part}}); err != nil {
					t.Fatal(err)
				}
			}
			// All entries are in one shard: the other server was told only once.
			want := map[int]int64{1: 25, 2: 10}[servers]
			if got := progress(); got != want {
				t.Errorf("progress %d, want %d", got, want)
			}
			var n, highest int
			for _, db := range w.dbs {
				var here, last int
				if err := db.QueryRow("SELECT COUNT(*), COALESCE(MAX(added_id), 0) FROM cellog_meta.index_applied WHERE index_name = 'marks'").Scan(&here, &last); err != nil {
					t.Fatal(err)
				}
				n, highest = n+here, max(highest, last)
			}
			if n == 0 || highest != 3 {
				t.Errorf("%d applied marks up to %d", n, highest)
			}
		})
	}
}
