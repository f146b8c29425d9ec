package ingest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// home is the other worker in tests: all shards are its own.
type home struct {
	write func(puts []cellog.Put) ([]cellog.Stored, []error, bool, error)

	mu    sync.Mutex
	calls int
	gone  bool
}

func (h *home) Home(string, cellog.ShardID) Peer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil
	}
	return h
}

func (h *home) Write(_ context.Context, _ string, puts []cellog.Put) ([]cellog.Stored, []error, bool, error) {
	h.mu.Lock()
	h.calls++
	h.mu.Unlock()
	return h.write(puts)
}

func storedThere(puts []cellog.Put) ([]cellog.Stored, []error, bool, error) {
	out := make([]cellog.Stored, len(puts))
	for i := range out {
		out[i] = cellog.Stored{Outcome: cellog.Created, AddedID: 1000}
	}
	return out, make([]error, len(puts)), true, nil
}

func failingThere(err error) func([]cellog.Put) ([]cellog.Stored, []error, bool, error) {
	return func(puts []cellog.Put) ([]cellog.Stored, []error, bool, error) {
		errs := make([]error, len(puts))
		for i := range errs {
			errs[i] = err
		}
		return make([]cellog.Stored, len(puts)), errs, true, nil
	}
}

func TestForwarding(t *testing.T) {
	noAnswer := errors.New("no answer")
	for _, c := range []struct {
		name  string
		there func([]cellog.Put) ([]cellog.Stored, []error, bool, error)
		here  error  // of the store; nil: it stores
		code  string // of the answer; "": stored
		at    cellog.AddedID
	}{
		{"the home stores", storedThere, nil, "", 1000},
		{"the home is overloaded", failingThere(ErrOverloaded), nil, "overloaded", 0},
		{"the home stops", failingThere(ErrStopped), nil, "", 1},
		{"the home does not know", failingThere(ErrOutcomeUnknown), nil, "", 1},
		{"the home gives no answer", func([]cellog.Put) ([]cellog.Stored, []error, bool, error) { return nil, nil, true, noAnswer }, nil, "", 1},
		{"the home panics", func([]cellog.Put) ([]cellog.Stored, []error, bool, error) { panic("a bug") }, nil, "", 1},
		{"the home is not reached, nor is the server", func([]cellog.Put) ([]cellog.Stored, []error, bool, error) { return nil, nil, false, noAnswer },
			&coded{"unavailable", "none"}, "unavailable", 0},
		// Nothing was kept here, but it may have been there.
		{"the home gives no answer, nor does the server", func([]cellog.Put) ([]cellog.Stored, []error, bool, error) { return nil, nil, true, noAnswer },
			&coded{"unavailable", "none"}, "outcome_unknown", 0},
		{"the home stops, and the server gives no answer", failingThere(ErrStopped), &coded{"unavailable", "none"}, "unavailable", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate(1, false)
			g.refuse = c.here
			h := &home{write: c.there}
			in := newIngest(t, Config{Store: g, Peers: h})
			for _, r := range in.PutMany(context.Background(), "trips", []cellog.Put{put(1), put(2)}) {
				if CodeOf(r.Err) != c.code || (r.Err == nil) != (c.code == "") {
					t.Errorf("error %v, want code %q", r.Err, c.code)
				}
				if c.at == 1000 && r.Stored.AddedID != 1000 || c.at == 1 && r.Stored.AddedID > 2 {
					t.Errorf("stored %v", r.Stored)
				}
			}
			if in.bytes.Load() != 0 {
				t.Errorf("%d bytes are still counted", in.bytes.Load())
			}
			if h.calls == 0 {
				t.Error("the home was not asked")
			}
		})
	}
}

// A forwarded cell goes no further, whoever its shard's home is.
func TestOneHop(t *testing.T) {
	g := newGate(1, false)
	h := &home{write: storedThere}
	in := newIngest(t, Config{Store: g, Peers: h})
	p := put(1)
	var err error
	if p.Body, err = body.Encode(nil, p.Body, body.Limits{}); err != nil {
		t.Fatal(err)
	}
	if r := in.Take(context.Background(), "trips", []cellog.Put{p}); r[0].Err != nil || r[0].Stored.AddedID != 1 || h.calls != 0 {
		t.Errorf("%+v after %d calls of the home", r[0], h.calls)
	}
	for name, bad := range map[string]func(*cellog.Put){
		"body":        func(p *cellog.Put) { p.Body = []byte("not in stored form") },
		"column":      func(p *cellog.Put) { p.Column = "" },
		"traceparent": func(p *cellog.Put) { p.TraceParent = "x" },
	} {
		q := p
		bad(&q)
		if r := in.Take(context.Background(), "trips", []cellog.Put{q}); r[0].Err == nil {
			t.Errorf("bad %s: stored", name)
		}
	}
	if r := in.Take(context.Background(), "other", []cellog.Put{p}); r[0].Err == nil {
		t.Error("unknown datastore: stored")
	}
}

// Whose caller leaves while the home is asked, or after it has failed, is told
// that the outcome is unknown; nothing of it stays behind.
func TestCallerLeavesAForwardedPut(t *testing.T) {
	asked, answer := make(chan bool), make(chan bool)
	h := &home{write: func([]cellog.Put) ([]cellog.Stored, []error, bool, error) {
		asked <- true
		<-answer
		return nil, nil, true, errors.New("no answer")
	}}
	g := newGate(1, false)
	in := newIngest(t, Config{Store: g, Peers: h})
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := in.Put(ctx, "trips", put(1))
		got <- err
	}()
	<-asked
	cancel()
	if err := <-got; !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	answer <- true
	stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := in.Stop(stop); err != nil || in.bytes.Load() != 0 || len(g.order[0]) != 0 {
		t.Errorf("%v, %d bytes, %d written", err, in.bytes.Load(), len(g.order[0]))
	}
}
