package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a store that tells of each write and lets it go on when told.
type gate struct {
	shards  int
	entered chan []cellog.Put // nil: writes are not told
	leave   chan struct{}     // nil: writes do not wait

	mu     sync.Mutex
	last   map[cellog.ShardID]cellog.AddedID
	busy   map[cellog.ShardID]bool
	order  map[cellog.ShardID][]cellog.RefKey
	twice  bool
	panic  bool
	refuse error // of each cell
}

func newGate(shards int, gated bool) *gate {
	g := &gate{shards: shards, last: map[cellog.ShardID]cellog.AddedID{}, busy: map[cellog.ShardID]bool{}, order: map[cellog.ShardID][]cellog.RefKey{}}
	if gated {
		g.entered, g.leave = make(chan []cellog.Put), make(chan struct{})
	}
	return g
}

func (g *gate) Shards(ds string) (int, error) {
	if ds != "trips" {
		return 0, errors.New("no such datastore")
	}
	return g.shards, nil
}

func (g *gate) WriteNext(_ context.Context, _ string, shard cellog.ShardID, take func() []cellog.Put) ([]cellog.Stored, []error) {
	puts := take()
	g.mu.Lock()
	g.twice = g.twice || g.busy[shard]
	g.busy[shard] = true
	boom := g.panic
	g.mu.Unlock()
	if g.entered != nil {
		g.entered <- puts
		<-g.leave
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy[shard] = false
	if boom {
		panic("a bug")
	}
	stored := make([]cellog.Stored, len(puts))
	if g.refuse != nil {
		errs := make([]error, len(puts))
		for i := range errs {
			errs[i] = g.refuse
		}
		return stored, errs
	}
	for i, p := range puts {
		g.last[shard]++
		g.order[shard] = append(g.order[shard], p.Ref)
		stored[i] = cellog.Stored{Outcome: cellog.Created, Shard: shard, AddedID: g.last[shard], Epoch: 1}
	}
	return stored, make([]error, len(puts))
}

func newIngest(t *testing.T, cfg Config) *Ingest {
	t.Helper()
	in, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for range 2 {
			if err := in.Stop(ctx); err != nil {
				t.Error(err)
			}
		}
		if n := in.bytes.Load(); n != 0 {
			t.Errorf("%d bytes are still counted", n)
		}
		if len(in.queues) != 0 {
			t.Errorf("%d queues are left", len(in.queues))
		}
	})
	return in
}

func put(ref int) cellog.Put {
	return cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: cellog.RefKey(ref)}, Body: []byte(`{"a":1}`)}
}

type res struct {
	stored cellog.Stored
	err    error
}

func async(in *Ingest, ctx context.Context, p cellog.Put) <-chan res {
	ch := make(chan res, 1)
	go func() {
		s, err := in.Put(ctx, "trips", p)
		ch <- res{s, err}
	}()
	return ch
}

// queuedCells waits until so many cells are queued.
func queuedCells(t *testing.T, in *Ingest, n int) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		have := 0
		in.mu.Lock()
		for _, q := range in.queues {
			q.mu.Lock()
			have += len(q.items)
			q.mu.Unlock()
		}
		in.mu.Unlock()
		if have == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d cells are queued, want %d", have, n)
		}
		time.Sleep(time.Millisecond)
	}
}

// What comes while a transaction is in flight travels together in the next.
func TestGroupCommit(t *testing.T) {
	g := newGate(1, true)
	in := newIngest(t, Config{Store: g, BatchCells: 5})
	ctx := t.Context()
	answers := []<-chan res{async(in, ctx, put(0))}
	if n := len(<-g.entered); n != 1 {
		t.Fatalf("the first transaction has %d cells", n)
	}
	for i := range 7 {
		answers = append(answers, async(in, ctx, put(i+1)))
		queuedCells(t, in, i+1)
	}
	for _, want := range []int{5, 2} {
		g.leave <- struct{}{}
		if n := len(<-g.entered); n != want {
			t.Errorf("a transaction has %d cells, want %d", n, want)
		}
	}
	g.leave <- struct{}{}
	for i, a := range answers {
		if r := <-a; r.err != nil || r.stored.AddedID != cellog.AddedID(i+1) {
			t.Errorf("put %d: %+v", i, r)
		}
	}
}

func TestBatchesAreBoundedByBytes(t *testing.T) {
	g := newGate(1, true)
	in := newIngest(t, Config{Store: g, BatchBytes: 2 * (overhead + 40)})
	answers := []<-chan res{async(in, t.Context(), put(0))}
	<-g.entered
	for i := range 3 {
		answers = append(answers, async(in, t.Context(), put(i)))
	}
	queuedCells(t, in, 3)
	for _, want := range []int{2, 1} {
		g.leave <- struct{}{}
		if n := len(<-g.entered); n != want {
			t.Errorf("a transaction has %d cells, want %d", n, want)
		}
	}
	g.leave <- struct{}{}
	for _, a := range answers {
		if r := <-a; r.err != nil {
			t.Error(r.err)
		}
	}
}

// A caller whose time is up takes its put back while it is queued, and is told
// the truth when it is not.
func TestDeadlines(t *testing.T) {
	g := newGate(1, true)
	in := newIngest(t, Config{Store: g})
	ctx, cancel := context.WithCancel(t.Context())
	flying := async(in, ctx, put(1))
	<-g.entered
	waiting := async(in, ctx, put(2))
	staying := async(in, t.Context(), put(3))
	queuedCells(t, in, 2)
	cancel()
	if r := <-flying; !errors.Is(r.err, ErrOutcomeUnknown) {
		t.Errorf("in flight: %+v", r)
	}
	if r := <-waiting; !errors.Is(r.err, ErrDeadline) {
		t.Errorf("queued: %+v", r)
	}
	g.leave <- struct{}{}
	if puts := <-g.entered; len(puts) != 1 || puts[0].Ref != 3 {
		t.Errorf("the next transaction: %v", puts)
	}
	g.leave <- struct{}{}
	if r := <-staying; r.err != nil || r.stored.AddedID != 2 {
		t.Errorf("the other caller: %+v", r)
	}
}

func TestOverload(t *testing.T) {
	size := int64(overhead + 40)
	for name, cfg := range map[string]Config{"in all": {QueueBytes: 3 * size}, "per shard": {ShardQueueBytes: 2 * size}} {
		g := newGate(1, true)
		cfg.Store = g
		in := newIngest(t, cfg)
		answers := []<-chan res{async(in, t.Context(), put(0))}
		<-g.entered
		for range 2 {
			answers = append(answers, async(in, t.Context(), put(1)))
		}
		queuedCells(t, in, 2)
		if _, err := in.Put(t.Context(), "trips", put(9)); !errors.Is(err, ErrOverloaded) {
			t.Errorf("%s: %v", name, err)
		}
		g.leave <- struct{}{}
		<-g.entered
		g.leave <- struct{}{}
		for _, a := range answers {
			if r := <-a; r.err != nil {
				t.Errorf("%s: %v", name, r.err)
			}
		}
		for _, ref := range g.order[0] {
			if ref == 9 {
				t.Errorf("%s: the refused cell was written", name)
			}
		}
	}
}

func TestStopDrains(t *testing.T) {
	g := newGate(2, true)
	in := newIngest(t, Config{Store: g})
	var answers []<-chan res
	for i := range 2 {
		answers = append(answers, async(in, t.Context(), put(i)))
	}
	<-g.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.Stop(ctx); err == nil {
		t.Error("Stop did not wait")
	}
	if _, err := in.Put(t.Context(), "trips", put(9)); !errors.Is(err, ErrStopped) && !errors.Is(err, ErrOverloaded) {
		t.Errorf("put after Stop: %v", err)
	}
	go func() {
		for range g.entered {
			g.leave <- struct{}{}
		}
	}()
	g.leave <- struct{}{}
	stored := 0
	for _, a := range answers {
		if r := <-a; r.err == nil {
			stored++
		} else if !errors.Is(r.err, ErrStopped) {
			t.Error(r.err) // it came too late for Stop
		}
	}
	if err := in.Stop(t.Context()); err != nil || stored == 0 {
		t.Errorf("%d stored, %v", stored, err)
	}
	close(g.entered)
}

func TestStorePanicIsUnknown(t *testing.T) {
	g := newGate(1, false)
	g.panic = true
	in := newIngest(t, Config{Store: g})
	if _, err := in.Put(t.Context(), "trips", put(1)); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	g.panic = false
	if s, err := in.Put(t.Context(), "trips", put(1)); err != nil || s.AddedID != 1 {
		t.Errorf("%+v %v", s, err)
	}
}

// Each item of PutMany ends by itself, and the good ones keep their order.
func TestPutMany(t *testing.T) {
	g := newGate(1, false)
	in := newIngest(t, Config{Store: g, Limits: body.Limits{Bytes: 100}})
	puts := []cellog.Put{put(0), put(1), put(2), put(3), put(4), put(5)}
	puts[1].Body = []byte(`{"a":1,"a":2}`)
	puts[2].Column = "_x"
	puts[3].TraceParent = "nope"
	puts[4].Body = []byte(`"` + strings.Repeat("x", 100) + `"`)
	var got []string
	for _, r := range in.PutMany(t.Context(), "trips", puts) {
		got = append(got, label(&r))
	}
	if s := strings.Join(got, " "); s != "created duplicate_key bad_column bad_traceparent body_too_large created" {
		t.Errorf("%s", s)
	}
	if fmt.Sprint(g.order[0]) != "[0 5]" {
		t.Errorf("written: %v", g.order[0])
	}
	if _, err := in.Put(t.Context(), "nosuch", put(1)); err == nil {
		t.Error("unknown datastore accepted")
	}
	if r := in.PutMany(t.Context(), "trips", nil); len(r) != 0 {
		t.Errorf("%v", r)
	}
}

// Many callers at once: each is answered once, no shard is written twice at a
// time, each shard's numbers are dense, and queues come and go.
func TestManyCallers(t *testing.T) {
	g := newGate(4, false)
	in := newIngest(t, Config{Store: g})
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]bool{}
	for c := range 32 {
		wg.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if (c+i)%10 == 0 {
					cancel()
				}
				s, err := in.Put(ctx, "trips", put(i))
				cancel()
				if errors.Is(err, ErrDeadline) || errors.Is(err, ErrOutcomeUnknown) {
					continue
				}
				if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				k := fmt.Sprint(s.Shard, s.AddedID)
				if seen[k] {
					t.Errorf("%s was given twice", k)
				}
				seen[k] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// A put whose caller has gone is still being written.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := in.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if g.twice {
		t.Error("a shard was written twice at a time")
	}
}

func TestValidTraceParent(t *testing.T) {
	good := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if !ValidTraceParent(good) {
		t.Error("refused")
	}
	for _, s := range []string{"", good[:54], good + "0", strings.ToUpper(good), strings.Replace(good, "00-", "ff-", 1), strings.Replace(good, "b7ad6b7169203331", "0000000000000000", 1),
		strings.Replace(good, "0af7651916cd43dd8448eb211c80319c", strings.Repeat("0", 32), 1), strings.Replace(good, "-", "_", 1)} {
		if ValidTraceParent(s) {
			t.Errorf("%q accepted", s)
		}
	}
}
