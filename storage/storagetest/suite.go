package storagetest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

// Store is what the suite needs of an implementation.
type Store interface {
	Shards(datastore string) (int, error)
	Write(ctx context.Context, datastore string, shard cellog.ShardID, puts []cellog.Put) ([]cellog.Stored, []error)
	Newest(ctx context.Context, datastore string, row uuid.UUID, column string, from cellog.ReadFrom) (cellog.Cell, cellog.Origin, error)
	Version(ctx context.Context, datastore string, key cellog.Key, from cellog.ReadFrom) (cellog.Cell, cellog.Origin, error)
	Row(ctx context.Context, datastore string, row uuid.UUID, after string, limit int, from cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error)
	Versions(ctx context.Context, datastore string, start cellog.Key, limit int, from cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error)
	History(ctx context.Context, datastore string, start cellog.Key, limit int, from cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error)
	Get(ctx context.Context, datastore string, gets []cellog.Get, maxBytes int, from cellog.ReadFrom) ([]cellog.Cell, []error, cellog.Origin, error)
	Log(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, column string, limit int, from cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error)
	Last(ctx context.Context, datastore string, shard cellog.ShardID, from cellog.ReadFrom) (cellog.AddedID, error)
	Before(ctx context.Context, datastore string, shard cellog.ShardID, at time.Time, from cellog.ReadFrom) (cellog.AddedID, error)
	Sequences(ctx context.Context, datastore string, shard cellog.ShardID, after cellog.AddedID, page []cellog.Cell, from cellog.ReadFrom) error
	State(ctx context.Context, datastore string, key cellog.Key) (cellog.CellState, error)
}

// Run runs the suite. open returns a store with an empty datastore of one
// shard, whose cluster has so much room for columns, and the datastore's name.
func Run(t *testing.T, open func(t *testing.T, columnLimit int) (Store, string)) {
	for name, f := range map[string]func(*bundle){
		"outcomes":            outcomes,
		"one batch":           oneBatch,
		"mixed batch":         mixedBatch,
		"column limit":        columnLimit,
		"column limit racing": columnLimitRacing,
		"same key racing":     sameKeyRacing,
		"reads":               reads,
		"paging":              paging,
		"multi-get":           multiGet,
		"log":                 logs,
		"extremes":            extremes,
		"strangers":           strangers,
	} {
		t.Run(name, func(t *testing.T) {
			limit := 64
			if strings.HasPrefix(name, "column limit") {
				limit = 3
			}
			st, ds := open(t, limit)
			b := &bundle{t, st, ds, t.Context()}
			f(b)
			b.dense()
		})
	}
}

type bundle struct {
	*testing.T
	Store
	ds  string
	ctx context.Context
}

func (b *bundle) body(json string) []byte {
	b.Helper()
	s, err := body.Encode(nil, []byte(json), body.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (b *bundle) put(k cellog.Key, json string) cellog.Put {
	b.Helper()
	return cellog.Put{Key: k, Body: b.body(json)}
}

// write writes puts and wants their outcomes and added_ids.
func (b *bundle) write(puts []cellog.Put, want ...string) {
	b.Helper()
	stored, errs := b.Write(b.ctx, b.ds, 0, puts)
	for i := range puts {
		got := fmt.Sprintf("%v %d", stored[i].Outcome, stored[i].AddedID)
		if errs[i] != nil {
			got = errs[i].Error()
			var c storage.Coder
			if errors.As(errs[i], &c) {
				got = c.Code()
			}
		} else if stored[i].Epoch != cellog.FirstEpoch || time.Since(stored[i].CreatedAt).Abs() > time.Hour {
			b.Errorf("put %d: %+v", i, stored[i])
		}
		if got != want[i] {
			b.Errorf("put %d (%v): %s, want %s", i, puts[i].Key, got, want[i])
		}
	}
}

// dense wants the log to be exactly 1 … last.
func (b *bundle) dense() {
	b.Helper()
	last, err := b.Last(b.ctx, b.ds, 0, cellog.Master)
	if err != nil {
		b.Fatal(err)
	}
	var want cellog.AddedID
	var at time.Time
	for {
		cells, more, _, err := b.Log(b.ctx, b.ds, 0, want, math.MaxInt64, "", 1000, cellog.Master)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range cells {
			if want++; c.AddedID != want {
				b.Fatalf("added_id %d follows %d", c.AddedID, want-1)
			}
			if c.CreatedAt.Before(at) {
				b.Errorf("added_id %d was created before its predecessor", c.AddedID)
			}
			at = c.CreatedAt
		}
		if !more {
			break
		}
	}
	if want != last {
		b.Errorf("the log ends at %d, the shard says %d", want, last)
	}
}

func key(column string, ref cellog.RefKey) cellog.Key {
	return cellog.Key{Row: uuid.New(), Column: column, Ref: ref}
}

func outcomes(b *bundle) {
	k, other := key("BASE", 1), key("BASE", 1)
	b.write([]cellog.Put{b.put(k, `{"a":1,"b":[1,2]}`)}, "created 1")
	b.write([]cellog.Put{b.put(k, `{"b":[1.0,2e0],"a":1}`)}, "same 1")
	b.write([]cellog.Put{b.put(k, `{"a":1,"b":[2,1]}`)}, "conflict 1")
	b.write([]cellog.Put{b.put(other, `1`)}, "created 2")
	k.Ref = 2
	b.write([]cellog.Put{b.put(k, `null`)}, "created 3")
	c, _, err := b.Version(b.ctx, b.ds, k, cellog.Master)
	if err != nil || c.Key != k || c.AddedID != 3 || c.Epoch != 1 {
		b.Errorf("%+v, %v", c, err)
	}
}

func oneBatch(b *bundle) {
	x, y := key("BASE", 1), key("BASE", 2)
	b.write([]cellog.Put{b.put(x, `1`), b.put(x, `1.0`), b.put(y, `2`), b.put(x, `3`), b.put(y, `20e-1`)},
		"created 1", "same 1", "created 2", "conflict 1", "same 2")
	b.write([]cellog.Put{b.put(x, `3`), b.put(x, `1`), b.put(x, `3`)}, "conflict 1", "same 1", "conflict 1")
}

func mixedBatch(b *bundle) {
	var old []cellog.Put
	for i := range 40 {
		old = append(old, b.put(key("BASE", cellog.RefKey(i)), `"old"`))
	}
	want := make([]string, len(old))
	for i := range want {
		want[i] = fmt.Sprintf("created %d", i+1)
	}
	b.write(old, want...)
	var puts []cellog.Put
	want = want[:0]
	id := len(old)
	for i := range 700 { // more than one look-up holds
		switch {
		case i%10 == 3 && i < 400:
			puts = append(puts, old[i/10])
			want = append(want, fmt.Sprintf("same %d", i/10+1))
		case i%10 == 7 && i < 400:
			puts = append(puts, b.put(old[i/10].Key, `"new"`))
			want = append(want, fmt.Sprintf("conflict %d", i/10+1))
		default:
			id++
			puts = append(puts, b.put(key("STATUS", 1), fmt.Sprint(i)))
			want = append(want, fmt.Sprintf("created %d", id))
		}
	}
	b.write(puts, want...)
	for i := range want {
		want[i] = strings.Replace(want[i], "created", "same", 1)
	}
	b.write(puts, want...)
}

func columnLimit(b *bundle) {
	b.write([]cellog.Put{b.put(key("A", 1), `1`), b.put(key("B", 1), `1`)}, "created 1", "created 2")
	refused := key("D", 1)
	b.write([]cellog.Put{b.put(key("A", 1), `1`), b.put(key("C", 1), `1`), b.put(refused, `1`), b.put(key("B", 1), `1`), b.put(key("E", 1), `1`)},
		"created 3", "created 4", "column_limit", "created 5", "column_limit")
	b.write([]cellog.Put{b.put(refused, `1`)}, "column_limit")
	if _, _, err := b.Version(b.ctx, b.ds, refused, cellog.Master); !errors.Is(err, storage.ErrNotFound) {
		b.Errorf("a refused cell is there: %v", err)
	}
}

func columnLimitRacing(b *bundle) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	stored := map[string]bool{}
	for i := range 20 {
		wg.Go(func() {
			col := fmt.Sprintf("C%d", i)
			_, errs := b.Write(b.ctx, b.ds, 0, []cellog.Put{b.put(key(col, 1), `1`)})
			mu.Lock()
			defer mu.Unlock()
			if errs[0] == nil {
				stored[col] = true
			} else if !errors.Is(errs[0], storage.ErrColumnLimit) {
				b.Error(errs[0])
			}
		})
	}
	wg.Wait()
	if len(stored) != 3 {
		b.Errorf("%d columns were taken, want 3", len(stored))
	}
}

func sameKeyRacing(b *bundle) {
	for range 20 {
		k := key("BASE", 1)
		var mu sync.Mutex
		count := map[cellog.Outcome]int{}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				stored, errs := b.Write(b.ctx, b.ds, 0, []cellog.Put{b.put(k, fmt.Sprint(i%2)), b.put(key("BASE", 2), `0`)})
				mu.Lock()
				defer mu.Unlock()
				if err := errors.Join(errs...); err != nil {
					b.Error(err)
				}
				count[stored[0].Outcome]++
			})
		}
		wg.Wait()
		if count[cellog.Created] != 1 || count[cellog.Same] != 3 || count[cellog.Conflict] != 4 {
			b.Errorf("8 puts of 2 bodies: %v", count)
		}
	}
}

func reads(b *bundle) {
	k := key("BASE", 5)
	trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	p := b.put(k, `{"v":5}`)
	p.TraceParent = trace
	low, high := k, k
	low.Ref, high.Ref = math.MinInt64, math.MaxInt64
	status := cellog.Key{Row: k.Row, Column: "STATUS", Ref: -1}
	b.write([]cellog.Put{p, b.put(low, `"low"`), b.put(high, `"high"`), b.put(status, `"s"`)}, "created 1", "created 2", "created 3", "created 4")
	c, o, err := b.Newest(b.ctx, b.ds, k.Row, "BASE", cellog.Master)
	if err != nil || c.Key != high || o.From != cellog.Master || o.Stale || o.Node == "" {
		b.Errorf("newest: %+v %+v %v", c, o, err)
	}
	if c, _, err = b.Version(b.ctx, b.ds, k, cellog.Master); err != nil || c.TraceParent != trace || c.Datastore != b.ds {
		b.Errorf("version: %+v %v", c, err)
	}
	if text, err := body.AppendJSON(nil, c.Body, 0); err != nil || string(text) != `{"v":5}` {
		b.Errorf("body %s, %v", text, err)
	}
	row, more, _, err := b.Row(b.ctx, b.ds, k.Row, "", 10, cellog.Master)
	if err != nil || more || len(row) != 2 || row[0].Key != high || row[1].Key != status {
		b.Errorf("row: %+v %v %v", row, more, err)
	}
	if row, more, _, err = b.Row(b.ctx, b.ds, k.Row, "", 1, cellog.Master); err != nil || !more || len(row) != 1 {
		b.Errorf("row of one: %+v %v %v", row, more, err)
	}
	for _, miss := range []error{
		second(b.Newest(b.ctx, b.ds, k.Row, "NOTES", cellog.Master)),
		second(b.Newest(b.ctx, b.ds, uuid.New(), "BASE", cellog.Master)),
		second(b.Version(b.ctx, b.ds, cellog.Key{Row: k.Row, Column: "BASE", Ref: 4}, cellog.Master)),
		second(b.Version(b.ctx, b.ds, cellog.Key{Row: k.Row, Column: "base", Ref: 5}, cellog.Master)),
	} {
		if !errors.Is(miss, storage.ErrNotFound) {
			b.Errorf("want not_found, got %v", miss)
		}
	}
	st, err := b.State(b.ctx, b.ds, k)
	if err != nil || st.State != cellog.StateStored || st.Cell == nil || st.Cell.AddedID != 1 {
		b.Errorf("state: %+v %v", st, err)
	}
	if st, err = b.State(b.ctx, b.ds, key("BASE", 1)); err != nil || st.State != cellog.StateUnknown {
		b.Errorf("state of nothing: %+v %v", st, err)
	}
}

func second(_ cellog.Cell, _ cellog.Origin, err error) error { return err }

func paging(b *bundle) {
	row := uuid.New()
	var puts []cellog.Put
	var want, all []string
	for i := range 25 {
		puts = append(puts, b.put(cellog.Key{Row: row, Column: "B", Ref: cellog.RefKey(10 - i)}, fmt.Sprint(i)))
	}
	puts = append(puts, b.put(cellog.Key{Row: row, Column: "A", Ref: math.MaxInt64}, `1`), b.put(cellog.Key{Row: row, Column: "C", Ref: math.MinInt64}, `1`))
	if _, errs := b.Write(b.ctx, b.ds, 0, puts); errors.Join(errs...) != nil {
		b.Fatal(errs)
	}
	k := cellog.Key{Row: row, Column: "B", Ref: math.MinInt64}
	for {
		cells, more, _, err := b.History(b.ctx, b.ds, k, 7, cellog.Master)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range cells {
			want = append(want, fmt.Sprint(c.Ref))
		}
		if !more {
			break
		}
		k.Ref = cells[len(cells)-1].Ref + 1
	}
	if got := strings.Join(want, " "); len(want) != 25 || !strings.HasPrefix(got, "-14 -13 -12") || !strings.HasSuffix(got, "9 10") {
		b.Errorf("history: %s", got)
	}
	k = cellog.Key{Row: row, Ref: math.MinInt64}
	for {
		cells, more, _, err := b.Versions(b.ctx, b.ds, k, 6, cellog.Master)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range cells {
			all = append(all, c.Column+fmt.Sprint(c.Ref))
		}
		if !more {
			break
		}
		k = cells[len(cells)-1].Key
		if k.Ref == math.MaxInt64 {
			k.Column, k.Ref = k.Column+"0", math.MinInt64
		} else {
			k.Ref++
		}
	}
	if len(all) != 27 || all[0] != "A9223372036854775807" || all[26] != "C-9223372036854775808" {
		b.Errorf("versions: %v", all)
	}
}

func multiGet(b *bundle) {
	k := key("BASE", 1)
	k2 := k
	k2.Ref = 2
	b.write([]cellog.Put{b.put(k, `1`), b.put(k2, `2`)}, "created 1", "created 2")
	var gets []cellog.Get
	for range 120 {
		gets = append(gets, cellog.Get{Key: k}, cellog.Get{Key: k, Newest: true}, cellog.Get{Key: key("BASE", 1)})
	}
	cells, errs, _, err := b.Get(b.ctx, b.ds, gets, 1<<20, cellog.Master)
	if err != nil {
		b.Fatal(err)
	}
	for i := range gets {
		switch i % 3 {
		case 0, 1:
			if errs[i] != nil || cells[i].Ref != cellog.RefKey(i%3+1) {
				b.Fatalf("get %d: %+v %v", i, cells[i], errs[i])
			}
		case 2:
			if !errors.Is(errs[i], storage.ErrNotFound) {
				b.Fatalf("get %d: %v", i, errs[i])
			}
		}
	}
	_, errs, _, err = b.Get(b.ctx, b.ds, gets, 1, cellog.Master)
	if err != nil || !errors.Is(errs[len(errs)-1], storage.ErrTooMuch) {
		b.Errorf("an answer past its limit: %v, %v", errs[len(errs)-1], err)
	}

	// Of large cells an answer holds what its limit allows, and at most one
	// more: nobody reads hundreds of megabytes first, to say so then.
	const size, limit = 10_000, 50_000
	var many []cellog.Get
	var puts []cellog.Put
	var want []string
	for i := range 60 {
		noise := make([]byte, size)
		_, _ = rand.Read(noise) // never fails
		p := b.put(key("BIG", 1), `"`+base64.StdEncoding.EncodeToString(noise)+`"`)
		puts, many, want = append(puts, p), append(many, cellog.Get{Key: p.Key}), append(want, fmt.Sprint("created ", i+3))
	}
	b.write(puts, want...)
	cells, errs, _, err = b.Get(b.ctx, b.ds, many, limit, cellog.Master)
	if err != nil {
		b.Fatal(err)
	}
	got := 0
	for i := range many {
		switch {
		case errs[i] == nil:
			got += len(cells[i].Body)
		case !errors.Is(errs[i], storage.ErrTooMuch):
			b.Errorf("get %d: %v", i, errs[i])
		}
	}
	if got < limit || got > limit+2*size {
		b.Errorf("an answer limited to %d bytes has %d", limit, got)
	}
}

func logs(b *bundle) {
	var times []time.Time
	for i := range 5 {
		stored, errs := b.Write(b.ctx, b.ds, 0, []cellog.Put{b.put(key("BASE", 1), fmt.Sprint(i)), b.put(key("STATUS", 1), `1`)})
		if err := errors.Join(errs...); err != nil {
			b.Fatal(err)
		}
		times = append(times, stored[0].CreatedAt)
	}
	cells, more, _, err := b.Log(b.ctx, b.ds, 0, 2, 9, "", 3, cellog.Master)
	if err != nil || !more || len(cells) != 3 || cells[0].AddedID != 3 {
		b.Errorf("log: %v %v %v", cells, more, err)
	}
	cells, more, _, err = b.Log(b.ctx, b.ds, 0, 3, 9, "STATUS", 100, cellog.Master)
	if err != nil || more || len(cells) != 3 || cells[0].AddedID != 4 || cells[2].AddedID != 8 {
		b.Errorf("log of a column: %v %v %v", cells, more, err)
	}
	if err := b.Sequences(b.ctx, b.ds, 0, 3, cells, cellog.Master); err != nil || cells[0].Sequence != 2 || cells[2].Sequence != 4 {
		b.Errorf("sequences: %v %v", cells, err)
	}
	for i, at := range times {
		first := 0 // batches of one microsecond share their time
		for first < i && !times[first].Before(at) {
			first++
		}
		id, err := b.Before(b.ctx, b.ds, 0, at, cellog.Master)
		if err != nil || int(id) > 2*i || id%2 != 0 {
			b.Errorf("before the time of batch %d: %d, %v", i, id, err)
		}
	}
	if id, err := b.Before(b.ctx, b.ds, 0, times[4].Add(time.Hour), cellog.Master); err != nil || id != 10 {
		b.Errorf("before the future: %d %v", id, err)
	}
	if id, err := b.Before(b.ctx, b.ds, 0, times[0].Add(-time.Hour), cellog.Master); err != nil || id != 0 {
		b.Errorf("before the past: %d %v", id, err)
	}
}

func extremes(b *bundle) {
	big := `"` + strings.Repeat("0123456789abcdef", 8<<16-1) + `"`
	k, quotes := key("BASE", math.MinInt64), key("BASE", math.MaxInt64)
	text := `"'\"\\ \u0000 \u001a % _ ; -- ` + "`" + ` 🚕"`
	b.write([]cellog.Put{b.put(k, big), b.put(quotes, text)}, "created 1", "created 2")
	for key, want := range map[cellog.Key]string{k: big, quotes: text} {
		c, _, err := b.Version(b.ctx, b.ds, key, cellog.Master)
		if err != nil {
			b.Fatal(err)
		}
		if equal, err := body.Equal(c.Body, b.body(want)); err != nil || !equal {
			b.Errorf("%v came back differently: %v", key, err)
		}
	}
}

func strangers(b *bundle) {
	_, errs := b.Write(b.ctx, "nosuch", 0, []cellog.Put{b.put(key("BASE", 1), `1`)})
	if !errors.Is(errs[0], storage.ErrUnknownDatastore) {
		b.Errorf("write to no datastore: %v", errs[0])
	}
	_, errs = b.Write(b.ctx, b.ds, 1, []cellog.Put{b.put(key("BASE", 1), `1`)})
	if !errors.Is(errs[0], storage.ErrUnknownShard) {
		b.Errorf("write to no shard: %v", errs[0])
	}
	if _, _, err := b.Newest(b.ctx, "nosuch", uuid.New(), "BASE", cellog.Master); !errors.Is(err, storage.ErrUnknownDatastore) {
		b.Errorf("read of no datastore: %v", err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	_, errs = b.Write(ctx, b.ds, 0, []cellog.Put{b.put(key("BASE", 1), `1`)})
	if errs[0] == nil {
		b.Error("a write with a context that is done was stored")
	}
}
