package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The outcomes of a charge.
const (
	Charged  = "charged"
	Declined = "declined"
)

// How flaky the gateway is, in per cent of requests where nothing else is said.
const (
	percentDead     = 1 // of trips: every attempt is declined
	percentDeclined = 6 // of other attempts
	percentRefused  = 5 // answered 503 before anything happened
	percentLost     = 4 // done, but the answer is lost
	percentSlow     = 5 // up to 200 ms late
)

// Charge is a request to the gateway.
type Charge struct {
	// Key makes the charge idempotent: <row_key>/<attempt>.
	Key    string `json:"key"`
	Amount string `json:"amount"`
}

// Entry is what the gateway's books say of a key.
type Entry struct {
	Charge
	Outcome string `json:"outcome"`
	// Asked counts the requests with the key that reached the books.
	Asked int `json:"-"`
}

// Gateway is a card gateway as they are: it forgets nothing that it did, it
// does not always say so. It answers a known key with the recorded outcome.
type Gateway struct {
	seed  uint64
	calm  bool // for tests: no failures of its own
	srv   *http.Server
	url   string
	ended chan error

	mu    sync.Mutex
	rnd   *rand.Rand
	books map[string]*Entry
	first map[string]time.Time // when a key was first asked for, refused or not
	stats GatewayStats
	// onCharge, if set, is called once, after the next new charge is in the
	// books and before it is answered.
	onCharge func(key string)
}

// GatewayStats counts what a gateway did.
type GatewayStats struct {
	Requests int `json:"requests"`
	Charged  int `json:"charged"`
	Declined int `json:"declined"`
	// Replays were answered from the books.
	Replays int `json:"replays"`
	// Refused got 503; Lost were done, but got no answer.
	Refused int `json:"refused"`
	Lost    int `json:"lost"`
}

// StartGateway starts a gateway on a free port of this machine.
func StartGateway(seed uint64) (*Gateway, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("card gateway: %w", err)
	}
	g := &Gateway{
		seed: seed, url: "http://" + l.Addr().String(), ended: make(chan error, 1),
		rnd: rand.New(rand.NewPCG(seed, 0x63617264)), books: make(map[string]*Entry), first: make(map[string]time.Time),
	}
	g.srv = &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	go func() { g.ended <- g.srv.Serve(l) }()
	return g, nil
}

// URL is where charges are posted.
func (g *Gateway) URL() string { return g.url }

// Stop ends the gateway; its books stay readable.
func (g *Gateway) Stop(ctx context.Context) error {
	err := g.srv.Shutdown(ctx)
	if served := <-g.ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// Arm has fn called once, after the next new charge is in the books and before
// it is answered.
func (g *Gateway) Arm(fn func(key string)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onCharge = fn
}

// Stats returns the counts so far.
func (g *Gateway) Stats() GatewayStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// Entry returns what the books say of a key.
func (g *Gateway) Entry(key string) (Entry, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.books[key]
	if !ok {
		return Entry{}, false
	}
	return *e, true
}

// Books returns a copy of the books by key.
func (g *Gateway) Books() map[string]Entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[string]Entry, len(g.books))
	for k, e := range g.books {
		out[k] = *e
	}
	return out
}

// FirstAsked returns when a key was first asked for.
func (g *Gateway) FirstAsked(key string) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, ok := g.first[key]
	return t, ok
}

// ServeHTTP answers one charge.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c Charge
	if err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&c); err != nil || c.Key == "" || c.Amount == "" {
		http.Error(w, "want {\"key\",\"amount\"}", http.StatusBadRequest)
		return
	}
	switch luck := g.draw(c.Key); {
	case luck < percentRefused:
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	case luck < percentRefused+percentSlow:
		select {
		case <-time.After(g.delay()):
		case <-r.Context().Done(): // it is done all the same
		}
	}
	e, fresh, err := g.book(c)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	if fresh {
		if fn := g.disarm(); fn != nil {
			fn(c.Key)
		}
	}
	if g.loses() {
		panic(http.ErrAbortHandler) // the connection breaks
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e) // who asked may be gone
}

// draw counts a request and says how lucky it is, in per cent.
func (g *Gateway) draw(key string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stats.Requests++
	if _, asked := g.first[key]; !asked {
		g.first[key] = time.Now()
	}
	luck := g.rnd.IntN(100)
	if g.calm {
		luck = 99
	}
	if luck < percentRefused {
		g.stats.Refused++
	}
	return luck
}

func (g *Gateway) delay() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Duration(g.rnd.IntN(200)) * time.Millisecond
}

func (g *Gateway) loses() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calm || g.rnd.IntN(100) >= percentLost {
		return false
	}
	g.stats.Lost++
	return true
}

func (g *Gateway) disarm() func(string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn := g.onCharge
	g.onCharge = nil
	return fn
}

// declines says whether a charge is declined, by seed and key only.
func (g *Gateway) declines(key string) bool {
	percent := func(s string) int {
		h := fnv.New64a()
		fmt.Fprint(h, g.seed, s)
		return int(h.Sum64() % 100)
	}
	row, _, _ := strings.Cut(key, "/")
	return percent(row) < percentDead || percent(key) < percentDeclined
}

// book does the charge, unless the books know the key.
func (g *Gateway) book(c Charge) (e Entry, fresh bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.books[c.Key]; known != nil {
		if known.Amount != c.Amount {
			return Entry{}, false, fmt.Errorf("key %s was used for the amount %s", c.Key, known.Amount)
		}
		known.Asked++
		g.stats.Replays++
		return *known, false, nil
	}
	rec := &Entry{Charge: c, Outcome: Charged, Asked: 1}
	if g.declines(c.Key) {
		rec.Outcome = Declined
		g.stats.Declined++
	} else {
		g.stats.Charged++
	}
	g.books[c.Key] = rec
	return *rec, true, nil
}
