package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/storage"
)

// board is a directory in memory; its clock counts announcements.
type board struct {
	mu    sync.Mutex
	rows  map[string]storage.Sighting
	beats int64
}

func (b *board) Announce(_ context.Context, name, url string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows == nil {
		b.rows = map[string]storage.Sighting{}
	}
	b.beats++
	b.rows[name] = storage.Sighting{Name: name, URL: url, Node: "c1/n1", Beat: time.Unix(b.beats, 0)}
	return nil
}

func (b *board) Withdraw(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.rows, name)
	return nil
}

func (b *board) Workers(context.Context) ([]storage.Sighting, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []storage.Sighting
	for _, s := range b.rows {
		out = append(out, s)
	}
	return out, nil
}

// look is one turn of p at a time of the test's.
func look(t *testing.T, p *peers, now time.Time) {
	t.Helper()
	if err := p.dir.Announce(t.Context(), p.name, p.url); err != nil {
		t.Fatal(err)
	}
	all, err := p.dir.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.note(all, now)
}

// homes says whose each of 64 shards is in a worker's eyes, by URL.
func homes(p *peers) map[string]int {
	out := map[string]int{}
	for s := range cellog.ShardID(64) {
		if w, ok := p.Home("trips", s).(*worker); ok {
			out[w.url]++
		} else {
			out[p.url]++
		}
	}
	return out
}

func TestPeersAgreeWhoseShardsAre(t *testing.T) {
	b, now := &board{}, time.Now()
	var all []*peers
	for _, url := range []string{"http://a", "http://b", "http://c"} {
		p := newPeers(b, obs.Discard())
		p.url = url
		all = append(all, p)
	}
	for range 3 { // the second sight shows that a beat goes on
		for _, p := range all {
			look(t, p, now)
		}
		now = now.Add(beatEvery)
	}
	want := homes(all[0])
	if len(want) != 3 {
		t.Fatalf("%v: want shares for three", want)
	}
	for _, p := range all[1:] {
		if got := homes(p); got["http://a"] != want["http://a"] || got["http://b"] != want["http://b"] || got["http://c"] != want["http://c"] {
			t.Errorf("%s sees %v, the first one %v", p.url, got, want)
		}
	}

	// The third dies without a word: its row stays, its beat does not change.
	for range 6 {
		for _, p := range all[:2] {
			look(t, p, now)
		}
		now = now.Add(beatEvery)
	}
	if got := homes(all[0]); got["http://c"] != 0 || got["http://a"] < want["http://a"] || got["http://b"] < want["http://b"] {
		t.Errorf("after one died: %v, before %v", got, want)
	}

	// The second goes in order: at once nothing is left for it.
	if err := b.Withdraw(t.Context(), all[1].name); err != nil {
		t.Fatal(err)
	}
	now = now.Add(goneAfter)
	look(t, all[0], now)
	if got := homes(all[0]); got["http://a"] != 64 || len(all[0].seen) != 1 {
		t.Errorf("alone: %v, %d workers kept in mind", got, len(all[0].seen))
	}
}

// A worker that does not answer is left alone for a while, and its shards
// go to others meanwhile; then it is asked again.
func TestPeersLeaveASilentWorkerAlone(t *testing.T) {
	failing := true
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if failing {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer srv.Close()
	b, now := &board{}, time.Now()
	p, q := newPeers(b, obs.Discard()), newPeers(b, obs.Discard())
	defer p.close()
	p.url, q.url = "http://a", srv.URL
	for range 3 {
		look(t, q, now)
		look(t, p, now)
	}
	var w *worker
	for s := range cellog.ShardID(64) {
		if h, ok := p.Home("trips", s).(*worker); ok {
			w = h
		}
	}
	if w == nil {
		t.Fatal("no shard is the other worker's")
	}
	if _, _, sent, err := w.Write(t.Context(), "trips", []cellog.Put{{}}); err == nil || !sent {
		t.Fatalf("sent %v, %v", sent, err)
	}
	if got := homes(p); got["http://a"] != 64 || !w.away.Is(time.Now()) {
		t.Errorf("after a silence: %v", got)
	}
	w.away.Answered() // the time is over
	if got := homes(p); got["http://a"] == 64 {
		t.Error("it is never asked again")
	}
}

// Beats are compared for equality with the same server's: a clock that jumps
// brings nobody to life, and a server out of reach kills nobody.
func TestPeersTrustNoClock(t *testing.T) {
	p, now := newPeers(&board{}, obs.Discard()), time.Now()
	p.url = "http://a"
	beat := time.Unix(1000, 0)
	at := func(node string, b time.Time) storage.Sighting {
		return storage.Sighting{Name: "other", URL: "http://b", Node: node, Beat: b}
	}
	p.note([]storage.Sighting{at("c1/n1", beat), at("c2/n1", beat.Add(time.Hour))}, now)
	p.note([]storage.Sighting{at("c2/n1", beat.Add(time.Hour))}, now) // one server less, no new beat
	p.note([]storage.Sighting{at("c1/n1", beat)}, now)
	if got := homes(p); got["http://b"] != 0 {
		t.Errorf("a dead worker has %d shards", got["http://b"])
	}
	p.note([]storage.Sighting{at("c1/n1", beat.Add(-2*time.Hour))}, now) // it beats, by a clock set back
	if got := homes(p); got["http://b"] == 0 {
		t.Error("a live worker has no shards")
	}
}

func TestPeersStartAndStop(t *testing.T) {
	b := &board{}
	p := newPeers(b, obs.Discard())
	p.stop(t.Context()) // not started
	p.start("http://a")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if all, err := b.Workers(t.Context()); err != nil || len(all) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(errors.New("not announced"))
		}
	}
	p.stop(t.Context())
	p.stop(t.Context())
	if all, err := b.Workers(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}
