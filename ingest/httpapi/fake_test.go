package httpapi

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/schemas/body"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notFound has the code that storage's error has.
type notFound struct{}

func (notFound) Error() string { return "no such cell" }
func (notFound) Code() string  { return "not_found" }

type unknownDatastore struct{}

func (unknownDatastore) Error() string { return "no such datastore" }
func (unknownDatastore) Code() string  { return "unknown_datastore" }

// fake is a store in memory with one datastore, trips, of two shards. It has
// no faults of its own: fault, if set, runs before each call.
type fake struct {
	mu    sync.Mutex
	logs  [2][]cellog.Cell
	fault func(method string) error
}

func (f *fake) call(method string) (func(), error) {
	f.mu.Lock()
	if f.fault != nil {
		if err := f.fault(method); err != nil {
			f.mu.Unlock()
			return nil, err
		}
	}
	return f.mu.Unlock, nil
}

func (f *fake) Shards(ds string) (int, error) {
	if ds != "trips" {
		return 0, unknownDatastore{}
	}
	return 2, nil
}

func (f *fake) WriteNext(_ context.Context, ds string, shard cellog.ShardID, take func() []cellog.Put) ([]cellog.Stored, []error) {
	puts := take()
	stored, errs := make([]cellog.Stored, len(puts)), make([]error, len(puts))
	unlock, err := f.call("Write")
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return stored, errs
	}
	defer unlock()
	for i, p := range puts {
		if c, ok := f.find(func(c *cellog.Cell) bool { return c.Key == p.Key }); ok {
			stored[i] = cellog.Stored{Outcome: cellog.Conflict, Shard: shard, AddedID: c.AddedID, Epoch: 1, CreatedAt: c.CreatedAt}
			if bytes.Equal(c.Body, p.Body) {
				stored[i].Outcome = cellog.Same
			}
			continue
		}
		c := cellog.Cell{Key: p.Key, Datastore: ds, Shard: shard, AddedID: cellog.AddedID(len(f.logs[shard]) + 1), Epoch: 1, CreatedAt: time.Now().UTC(), Body: p.Body, TraceParent: p.TraceParent}
		f.logs[shard] = append(f.logs[shard], c)
		stored[i] = cellog.Stored{Outcome: cellog.Created, Shard: shard, AddedID: c.AddedID, Epoch: 1, CreatedAt: c.CreatedAt}
	}
	return stored, errs
}

func (f *fake) all(want func(c *cellog.Cell) bool) []cellog.Cell {
	var out []cellog.Cell
	for s := range f.logs {
		for i := range f.logs[s] {
			if want(&f.logs[s][i]) {
				out = append(out, f.logs[s][i])
			}
		}
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Column != out[j].Column {
			return out[i].Column < out[j].Column
		}
		return out[i].Ref < out[j].Ref
	})
	return out
}

func (f *fake) find(want func(c *cellog.Cell) bool) (cellog.Cell, bool) {
	if out := f.all(want); len(out) > 0 {
		return out[len(out)-1], true
	}
	return cellog.Cell{}, false
}

var here = cellog.Origin{Node: "c0/n0"}

func (f *fake) one(method string, want func(c *cellog.Cell) bool) (cellog.Cell, cellog.Origin, error) {
	unlock, err := f.call(method)
	if err != nil {
		return cellog.Cell{}, cellog.Origin{}, err
	}
	defer unlock()
	c, ok := f.find(want)
	if !ok {
		return c, here, notFound{}
	}
	return c, here, nil
}

func (f *fake) Newest(_ context.Context, _ string, row uuid.UUID, column string, _ cellog.ReadFrom) (cellog.Cell, cellog.Origin, error) {
	return f.one("Newest", func(c *cellog.Cell) bool { return c.Row == row && c.Column == column })
}

func (f *fake) Version(_ context.Context, _ string, key cellog.Key, _ cellog.ReadFrom) (cellog.Cell, cellog.Origin, error) {
	return f.one("Version", func(c *cellog.Cell) bool { return c.Key == key })
}

func (f *fake) page(limit int, want func(c *cellog.Cell) bool) ([]cellog.Cell, bool, cellog.Origin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.all(want)
	more := len(out) > limit
	return out[:min(limit, len(out))], more, here, nil
}

func (f *fake) Row(_ context.Context, _ string, row uuid.UUID, after string, limit int, _ cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error) {
	all, _, _, _ := f.page(math.MaxInt, func(c *cellog.Cell) bool { return c.Row == row && c.Column > after })
	var out []cellog.Cell
	for i := range all {
		if i+1 == len(all) || all[i+1].Column != all[i].Column {
			out = append(out, all[i])
		}
	}
	return out[:min(limit, len(out))], len(out) > limit, here, nil
}

func (f *fake) Versions(_ context.Context, _ string, s cellog.Key, limit int, _ cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error) {
	return f.page(limit, func(c *cellog.Cell) bool {
		return c.Row == s.Row && (c.Column > s.Column || c.Column == s.Column && c.Ref >= s.Ref)
	})
}

func (f *fake) History(_ context.Context, _ string, s cellog.Key, limit int, _ cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error) {
	return f.page(limit, func(c *cellog.Cell) bool { return c.Row == s.Row && c.Column == s.Column && c.Ref >= s.Ref })
}

func (f *fake) Get(ctx context.Context, ds string, gets []cellog.Get, _ int, from cellog.ReadFrom) ([]cellog.Cell, []error, cellog.Origin, error) {
	out, errs := make([]cellog.Cell, len(gets)), make([]error, len(gets))
	for i, g := range gets {
		if g.Newest {
			out[i], _, errs[i] = f.Newest(ctx, ds, g.Row, g.Column, from)
		} else {
			out[i], _, errs[i] = f.Version(ctx, ds, g.Key, from)
		}
	}
	return out, errs, here, nil
}

func (f *fake) Log(_ context.Context, _ string, shard cellog.ShardID, after, upTo cellog.AddedID, column string, limit int, _ cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []cellog.Cell
	for _, c := range f.logs[shard] {
		if c.AddedID > after && c.AddedID <= upTo && (column == "" || c.Column == column) {
			if len(out) == limit {
				return out, true, here, nil
			}
			out = append(out, c)
		}
	}
	return out, false, here, nil
}

func (f *fake) Last(_ context.Context, _ string, shard cellog.ShardID, _ cellog.ReadFrom) (cellog.AddedID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cellog.AddedID(len(f.logs[shard])), nil
}

func (f *fake) Before(_ context.Context, _ string, shard cellog.ShardID, at time.Time, _ cellog.ReadFrom) (cellog.AddedID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var id cellog.AddedID
	for _, c := range f.logs[shard] {
		if c.CreatedAt.Before(at) {
			id = c.AddedID
		}
	}
	return id, nil
}

func (f *fake) Sequences(_ context.Context, _ string, shard cellog.ShardID, _ cellog.AddedID, page []cellog.Cell, _ cellog.ReadFrom) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range page {
		for _, c := range f.logs[shard] {
			if c.Column == page[i].Column && c.AddedID <= page[i].AddedID {
				page[i].Sequence++
			}
		}
	}
	return nil
}

func (f *fake) State(ctx context.Context, ds string, key cellog.Key) (cellog.CellState, error) {
	c, _, err := f.Version(ctx, ds, key, cellog.Master)
	if errors.As(err, new(notFound)) {
		return cellog.CellState{State: cellog.StateRejected, Rejected: []cellog.Rejection{{Reason: "conflict", WinnerEpoch: 1, WinnerAddedID: 7}}}, nil
	}
	return cellog.CellState{State: cellog.StateStored, Cell: &c}, err
}

func (f *fake) Rejected(_ context.Context, _, after string, _ int) ([]cellog.RejectedCell, string, bool, error) {
	done, err := f.call("Rejected")
	if err != nil {
		return nil, "", false, err
	}
	defer done()
	if after != "" {
		return nil, after, false, nil
	}
	return []cellog.RejectedCell{
		{Key: cellog.Key{Column: "BASE", Ref: 1}, Shard: 1, Body: mustEncode(`{"a":1}`), WinnerBody: mustEncode(`2`), Cluster: "c1", ID: 7,
			Rejection: cellog.Rejection{Reason: "conflict", WinnerEpoch: 1, WinnerAddedID: 7}},
		{Key: cellog.Key{Column: "BASE", Ref: 2}, Body: mustEncode(`3`), Cluster: "c1", ID: 8, Rejection: cellog.Rejection{Reason: "column_limit"}},
	}, "0:8", true, nil
}

func (f *fake) Buffered(context.Context, string) ([]cellog.BufferedCells, error) {
	done, err := f.call("Buffered")
	if err != nil {
		return nil, err
	}
	defer done()
	return []cellog.BufferedCells{{Node: "c1/n1", Shard: 1, Cells: 3, Oldest: time.Unix(0, 0)}}, nil
}

func mustEncode(text string) []byte {
	b, err := body.Encode(nil, []byte(text), body.Limits{})
	if err != nil {
		panic(err)
	}
	return b
}

// newTestAPI returns an API over a fake store.
func newTestAPI(t *testing.T, mod func(*Config, *fake)) *API {
	t.Helper()
	f := &fake{}
	cfg := Config{Store: f}
	if mod != nil {
		mod(&cfg, f)
	}
	in, err := ingest.New(ingest.Config{Store: f})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Ingest = in
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		if err := in.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}
