package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

func gateway(t *testing.T, calm bool) *Gateway {
	t.Helper()
	g, err := StartGateway(7)
	if err != nil {
		t.Fatal(err)
	}
	g.calm = calm
	t.Cleanup(func() {
		if err := g.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return g
}

func post(g *Gateway, c Charge) (int, Entry) {
	resp, err := http.Post(g.URL(), "application/json", bytes.NewReader(mustJSON(c)))
	if err != nil {
		return 0, Entry{}
	}
	defer resp.Body.Close()
	var e Entry
	if resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&e) != nil {
		return 0, Entry{}
	}
	return resp.StatusCode, e
}

// Whatever goes wrong on the way, a key is charged once and its outcome stays.
func TestGatewayChargesAKeyOnce(t *testing.T) {
	g := gateway(t, false)
	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := make(map[string]map[string]bool)
	for i := range 400 {
		wg.Go(func() {
			key := fmt.Sprint(i%100, "/1")
			for {
				if status, e := post(g, Charge{key, "1.00"}); status == 200 {
					mu.Lock()
					defer mu.Unlock()
					if outcomes[key] == nil {
						outcomes[key] = make(map[string]bool)
					}
					outcomes[key][e.Outcome] = true
					return
				}
			}
		})
	}
	wg.Wait()
	s := g.Stats()
	if s.Charged+s.Declined != 100 || s.Declined == 0 || s.Refused == 0 || s.Lost == 0 || s.Replays < 300 {
		t.Errorf("stats %+v", s)
	}
	for key, o := range outcomes {
		if e, ok := g.Entry(key); !ok || len(o) != 1 || !o[e.Outcome] {
			t.Errorf("key %s: answered %v, the books say %q", key, o, e.Outcome)
		}
	}
	if len(g.Books()) != 100 {
		t.Errorf("%d entries", len(g.Books()))
	}
}

func TestGatewayRefusesAnotherAmount(t *testing.T) {
	g := gateway(t, true)
	if status, _ := post(g, Charge{"a/1", "1.00"}); status != 200 {
		t.Fatal(status)
	}
	if status, _ := post(g, Charge{"a/1", "2.00"}); status != 422 {
		t.Errorf("another amount: %d, want 422", status)
	}
	if status, _ := post(g, Charge{"", "2.00"}); status != 400 {
		t.Errorf("no key: %d, want 400", status)
	}
}

func TestGatewayCallsBackBeforeItAnswers(t *testing.T) {
	g := gateway(t, true)
	called := 0
	g.Arm(func(key string) {
		called++
		if e, ok := g.Entry(key); !ok || e.Asked != 1 {
			t.Error("the charge is not in the books yet")
		}
	})
	post(g, Charge{"a/1", "1.00"})
	post(g, Charge{"a/1", "1.00"})
	post(g, Charge{"b/1", "1.00"})
	if called != 1 {
		t.Errorf("called %d times, want once", called)
	}
}

// fakeCells is a cell store with faults.
type fakeCells struct {
	mu    sync.Mutex
	cells map[cellog.Key][]byte
	// before a put is done, after it was done and before it is answered
	before, after func(k cellog.Key) error
}

func (f *fakeCells) Put(_ context.Context, _ string, p cellog.Put) (client.PutResult, error) {
	if f.before != nil {
		if err := f.before(p.Key); err != nil {
			return client.PutResult{}, err
		}
	}
	f.mu.Lock()
	stands, ok := f.cells[p.Key]
	if !ok {
		f.cells[p.Key] = p.Body
	}
	f.mu.Unlock()
	if f.after != nil {
		if err := f.after(p.Key); err != nil {
			return client.PutResult{}, err
		}
	}
	if ok && !bytes.Equal(stands, p.Body) {
		return client.PutResult{}, &client.Problem{Status: 409, Code: "conflict"}
	}
	return client.PutResult{}, nil
}

func (f *fakeCells) Get(_ context.Context, _ string, k cellog.Key, _ client.ReadOptions) (client.Cell, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.cells[k]; ok {
		return client.Cell{Cell: cellog.Cell{Key: k, Body: b}}, nil
	}
	return client.Cell{}, &client.Problem{Status: 404}
}

func (f *fakeCells) Newest(_ context.Context, _ string, k cellog.Key, _ client.ReadOptions) (client.Cell, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest, found := k, false
	for have := range f.cells {
		if have.Row == k.Row && have.Column == k.Column && (!found || have.Ref > newest.Ref) {
			newest, found = have, true
		}
	}
	if !found {
		return client.Cell{}, &client.Problem{Status: 404}
	}
	return client.Cell{Cell: cellog.Cell{Key: newest, Body: f.cells[newest]}}, nil
}

func (f *fakeCells) statuses(t *testing.T) map[uuid.UUID]map[cellog.RefKey]Status {
	t.Helper()
	out := make(map[uuid.UUID]map[cellog.RefKey]Status)
	for k, b := range f.cells {
		st, err := parseStatus(b)
		if err != nil {
			t.Fatal(err)
		}
		if out[k.Row] == nil {
			out[k.Row] = make(map[cellog.RefKey]Status)
		}
		out[k.Row][k.Ref] = st
	}
	return out
}

var errKilled = errors.New("killed")

// Billing dies before and after each of its effects, its answers get lost, and
// two deliveries of a trip race; the books must come out right.
func TestBillingChargesOnce(t *testing.T) {
	g := gateway(t, false)
	city := NewCity(3)
	var mu sync.Mutex
	faults := make(map[string]bool)
	once := func(name string) error { // each fault strikes each key once
		mu.Lock()
		defer mu.Unlock()
		if faults[name] {
			return nil
		}
		faults[name] = true
		return errKilled
	}
	store := &fakeCells{cells: make(map[cellog.Key][]byte)}
	store.before = func(k cellog.Key) error {
		if k.Row[0]%3 == 0 {
			return once("before " + k.String())
		}
		return nil
	}
	store.after = func(k cellog.Key) error {
		if k.Row[0]%3 == 1 {
			return once("after " + k.String())
		}
		return nil
	}
	var trips []*Trip
	var wg sync.WaitGroup
	for range 300 {
		trip := city.Next()
		trips = append(trips, trip)
		for by := range 2 {
			b := &Billing{Cells: store, Datastore: "trips", Gateway: g.URL(), By: fmt.Sprint(by)}
			wg.Go(func() {
				c := cellog.Cell{Key: cellog.Key{Row: trip.Row, Column: columnBase, Ref: 1}, Body: trip.Base()}
				for range 1000 {
					if b.Handle(context.Background(), c) == nil {
						return
					}
				}
				t.Errorf("trip %s does not end", trip.Row)
			})
		}
	}
	wg.Wait()
	a := settle(trips, g.Books(), store.statuses(t))
	if a.Differences != 0 || a.Charged+a.Declined != 300 || a.Declined == 0 || len(faults) == 0 {
		t.Errorf("accounts %+v", a)
	}
	if g.Stats().Declined == 0 || g.Stats().Replays == 0 {
		t.Errorf("gateway %+v", g.Stats())
	}
}

// A conflict means that another delivery finished: what stands counts.
func TestBillingHeedsWhatStands(t *testing.T) {
	g := gateway(t, true)
	trip := NewCity(4).Next()
	store := &fakeCells{cells: make(map[cellog.Key][]byte)}
	k := cellog.Key{Row: trip.Row, Column: columnStatus, Ref: 1}
	store.before = func(cellog.Key) error { // the other one comes first
		store.cells[k] = mustJSON(Status{Outcome: Charged, Amount: money(trip.Cents), By: "other"})
		store.before = nil
		return nil
	}
	b := &Billing{Cells: store, Datastore: "trips", Gateway: g.URL(), By: "me"}
	c := cellog.Cell{Key: cellog.Key{Row: trip.Row, Column: columnBase, Ref: 1}, Body: trip.Base()}
	for range 2 {
		if err := b.Handle(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
	if len(store.cells) != 1 || g.Stats().Requests != 1 {
		t.Errorf("%d STATUS cells, %d requests: want one each", len(store.cells), g.Stats().Requests)
	}
	store.cells[k] = []byte(`{"outcome":"perhaps"}`)
	if err := b.Handle(context.Background(), c); err == nil {
		t.Error("an unknown outcome was believed")
	}
}

func TestSettleFindsDifferences(t *testing.T) {
	trip := &Trip{Row: uuid.New(), Cents: 1234}
	key := func(n int) string { return ChargeKey(trip.Row, cellog.RefKey(n)) }
	entry := func(n int, outcome string) Entry { return Entry{Charge{key(n), "12.34"}, outcome, 1} }
	status := func(outcomes ...string) map[uuid.UUID]map[cellog.RefKey]Status {
		m := make(map[cellog.RefKey]Status)
		for i, o := range outcomes {
			m[cellog.RefKey(i+1)] = Status{Outcome: o}
		}
		return map[uuid.UUID]map[cellog.RefKey]Status{trip.Row: m}
	}
	books := func(es ...Entry) map[string]Entry {
		m := make(map[string]Entry)
		for _, e := range es {
			m[e.Key] = e
		}
		return m
	}
	wrong := entry(1, Charged)
	wrong.Amount = "12.35"
	for name, c := range map[string]struct {
		books    map[string]Entry
		statuses map[uuid.UUID]map[cellog.RefKey]Status
		want     string // in a detail; empty: no difference
	}{
		"charged":              {books(entry(1, Charged)), status(Charged), ""},
		"charged at the third": {books(entry(1, Declined), entry(2, Declined), entry(3, Charged)), status(Declined, Declined, Charged), ""},
		"declined":             {books(entry(1, Declined), entry(2, Declined), entry(3, Declined)), status(Declined, Declined, Declined), ""},
		"twice":                {books(entry(1, Charged), entry(2, Charged)), status(Charged, Charged), "charged 2 times"},
		"never":                {books(), status(), "0 attempts, not charged"},
		"given up too soon":    {books(entry(1, Declined)), status(Declined), "1 attempts, not charged"},
		"no status":            {books(entry(1, Charged)), status(), `STATUS says ""`},
		"status only":          {books(), status(Charged), `the books say ""`},
		"other outcome":        {books(entry(1, Charged)), status(Declined), "STATUS says \"declined\""},
		"other amount":         {books(wrong), status(Charged), "12.35 instead of 12.34"},
		"a stranger":           {books(entry(1, Charged), Entry{Charge{"x/1", "1.00"}, Charged, 1}), status(Charged), "belongs to no trip"},
		"a gap":                {books(entry(2, Charged)), map[uuid.UUID]map[cellog.RefKey]Status{trip.Row: {2: {Outcome: Charged}}}, "none before it"},
	} {
		a := settle([]*Trip{trip}, c.books, c.statuses)
		if (a.Differences == 0) != (c.want == "") || !strings.Contains(strings.Join(a.Details, "\n"), c.want) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestCityIsItsSeeds(t *testing.T) {
	a, b, other := NewCity(1), NewCity(1), NewCity(2)
	before := time.Time{}
	rows := make(map[uuid.UUID]bool)
	notes, adjustments, same := 0, 0, 0
	for range 5000 {
		x, y := a.Next(), b.Next()
		if !bytes.Equal(x.Base(), y.Base()) || x.Row != y.Row || x.NoteAfter != y.NoteAfter {
			t.Fatal("two cities of a seed differ")
		}
		if o := other.Next(); o.Row == x.Row {
			same++
		}
		if x.Ended.Before(before) || !x.Created.Before(x.Ended) || rows[x.Row] || x.Cents < 250 {
			t.Fatalf("trip %+v after %s", x, before)
		}
		before, rows[x.Row] = x.Ended, true
		if x.NoteAfter > 0 {
			notes++
		}
		if x.AdjustAfter > 0 {
			adjustments++
		}
	}
	if same > 0 || notes < 800 || notes > 1200 || adjustments < 150 || adjustments > 350 {
		t.Errorf("same %d, notes %d, adjustments %d", same, notes, adjustments)
	}
	// 5,000 trips at 100 a second are 50 seconds.
	real := time.Duration(float64(before.Sub(begin)) / Speed(100))
	if real < 45*time.Second || real > 55*time.Second {
		t.Errorf("5,000 trips at 100 a second take %s", real)
	}
}
