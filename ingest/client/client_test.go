package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/away"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var key = cellog.Key{Row: uuid.MustParse("0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77"), Column: "BASE", Ref: -3}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff, cfg.MaxBackoff = time.Millisecond, 4*time.Millisecond
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func problem(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"about:blank","status":%d,"code":%q,"title":"t"}`, status, code)
}

func stored(w http.ResponseWriter, status int) {
	w.Header().Set("Cellog-Shard", "7")
	w.Header().Set("Cellog-Added-Id", "41")
	w.Header().Set("Cellog-Epoch", "2")
	w.Header().Set("Cellog-Created-At", "2026-03-01T00:00:00.000001Z")
	w.Header().Set("Cellog-Token", cellog.Token{Key: key, Datastore: "trips", Shard: 7, Epoch: 2, AddedID: 41}.String())
	w.WriteHeader(status)
}

func put(c *Client) (PutResult, error) {
	return c.Put(context.Background(), "trips", cellog.Put{Key: key, Body: []byte(`{"a":1}`), TraceParent: "00-x"})
}

func TestPutOutcomes(t *testing.T) {
	for status, want := range map[int]cellog.Outcome{201: cellog.Created, 200: cellog.Same, 409: cellog.Conflict, 202: 0} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != `{"a":1}` || r.Method != "PUT" || r.Header.Get("Traceparent") != "00-x" ||
				r.URL.Path != "/v1/trips/cells/0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77/BASE/-3" {
				t.Errorf("%s %s %s %v", r.Method, r.URL, body, err)
			}
			stored(w, status)
		})
		res, err := put(newClient(t, Config{URLs: []string{u}}))
		if res.Outcome != want || (err != nil) != (status == 409) || IsConflict(err) != (status == 409) || res.Buffered != (status == 202) {
			t.Errorf("%d: %+v, %v", status, res, err)
		}
		if want != 0 && (res.Shard != 7 || res.AddedID != 41 || res.Epoch != 2 || res.CreatedAt.Nanosecond() != 1000) {
			t.Errorf("%d: %+v", status, res)
		}
	}
}

func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []int
		tries   int32
		check   func(PutResult, error) bool
	}{
		{"overloaded, then stored", []int{429, 503, 201}, 3, func(r PutResult, err error) bool { return err == nil && r.Outcome == cellog.Created }},
		{"unknown, then same", []int{504, 200}, 2, func(r PutResult, err error) bool { return err == nil && r.Outcome == cellog.Same }},
		{"unknown, then conflict", []int{504, 409}, 2, func(_ PutResult, err error) bool { return IsConflict(err) && !IsUnknown(err) }},
		{"refused at once", []int{400}, 1, func(_ PutResult, err error) bool { return IsRefused(err) && !IsUnknown(err) }},
		{"too large", []int{413}, 1, func(_ PutResult, err error) bool { return IsRefused(err) }},
		{"a fault of the server", []int{500}, 1, func(_ PutResult, err error) bool { return IsUnknown(err) }},
		{"kept nothing to the end", []int{503}, -1, func(_ PutResult, err error) bool { return err != nil && !IsUnknown(err) }},
		{"unknown once, then nothing kept to the end", []int{504, 503}, -1, func(_ PutResult, err error) bool { return IsUnknown(err) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n atomic.Int32
			u := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				i := int(n.Add(1)) - 1
				status := c.answers[min(i, len(c.answers)-1)]
				if status < 400 || status == 409 {
					stored(w, status)
					return
				}
				problem(w, status, "code")
			})
			res, err := put(newClient(t, Config{URLs: []string{u}, Budget: 100 * time.Millisecond}))
			if !c.check(res, err) || c.tries >= 0 && n.Load() != c.tries || c.tries < 0 && n.Load() < 3 {
				t.Errorf("%d attempts: %+v, %v", n.Load(), res, err)
			}
		})
	}
}

// A worker that is gone costs one failed attempt; nothing was sent there, so
// nothing is unknown.
func TestOtherWorkers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + l.Addr().String()
	l.Close()
	u := serve(t, func(w http.ResponseWriter, _ *http.Request) { stored(w, 201) })
	for range 10 {
		c := newClient(t, Config{URLs: []string{gone, u}})
		if res, err := put(c); err != nil || res.Outcome != cellog.Created {
			t.Errorf("%+v, %v", res, err)
		}
	}
	_, err = put(newClient(t, Config{URLs: []string{gone}, Budget: 20 * time.Millisecond}))
	if err == nil || IsUnknown(err) {
		t.Errorf("no connection was ever made: %v", err)
	}
}

// A connection that breaks after the request was sent leaves it unknown.
// A worker that does not answer costs one call its timeout, not each; when it
// answers again it has its share again.
func TestSilentWorkerIsAskedLast(t *testing.T) {
	var silent atomic.Bool
	var asked [2]atomic.Int64
	silent.Store(true)
	over := make(chan struct{})
	urls := make([]string, 2)
	for i := range urls {
		urls[i] = serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked[i].Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			if i == 0 && silent.Load() {
				select {
				case <-r.Context().Done():
				case <-over:
				}
				return
			}
			stored(w, 201)
		})
	}
	defer close(over)
	c := newClient(t, Config{URLs: urls, AttemptTimeout: 50 * time.Millisecond})
	put := func() {
		t.Helper()
		k := key
		k.Row = uuid.New()
		if _, err := c.Put(t.Context(), "trips", cellog.Put{Key: k, Body: []byte(`1`)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 40 {
		put()
	}
	// It is asked again a second after its first silence; 40 puts take less,
	// but on a very slow machine.
	if n := asked[0].Load(); n < 1 || n > 3 {
		t.Errorf("the silent worker was asked %d times by 40 puts, want once", n)
	}
	silent.Store(false)
	c.workers[0].away = away.Mark{}
	c.workers[0].away.Silent(time.Now().Add(-time.Hour)) // the time is over
	before := asked[0].Load()
	for range 40 {
		put()
	}
	if n := asked[0].Load() - before; n < 5 {
		t.Errorf("the worker that is back was asked by %d of 40 puts", n)
	}
	now := time.Now()
	if c.workers[0].away.Silent(now); c.workers[0].away.Is(now.Add(away.Min)) {
		t.Error("its silences still count though it has answered")
	}
}

func TestBrokenConnection(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
	if _, err := put(newClient(t, Config{URLs: []string{u}, Budget: 20 * time.Millisecond})); !IsUnknown(err) {
		t.Errorf("%v", err)
	}
}

func TestContextEndsRetries(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, _ *http.Request) { problem(w, 503, "unavailable") })
	c := newClient(t, Config{URLs: []string{u}, Budget: time.Hour, MinBackoff: time.Hour, MaxBackoff: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, "trips", key, ReadOptions{}); err == nil {
		t.Error("no error")
	}
}

func TestAffinity(t *testing.T) {
	urls := []string{"http://a", "http://b", "http://c"}
	c := newClient(t, Config{URLs: urls, Shards: map[string]int{"trips": 16}})
	first := map[cellog.ShardID]string{}
	used := map[string]int{}
	for range 1000 {
		k := cellog.Key{Row: uuid.New()}
		s, base := cellog.ShardOf(k.Row, 16), c.order(c.affinity("trips", k))[0].base
		if have := first[s]; have != "" && have != base {
			t.Fatalf("shard %d goes to %s and to %s", s, have, base)
		}
		first[s] = base
		used[base]++
	}
	if len(used) != 3 {
		t.Errorf("used %v", used)
	}
	// When a worker goes, only its own shards move.
	less := newClient(t, Config{URLs: urls[:2], Shards: map[string]int{"trips": 16}})
	for s, base := range first {
		if got := less.order(uint32(s))[0].base; base != "http://c" && got != base {
			t.Errorf("shard %d moved from %s to %s", s, base, got)
		}
	}
}

// Of a batch only the unfinished puts are sent again, and results keep their
// places.
func TestPutBatch(t *testing.T) {
	type item struct {
		RowKey string          `json:"row_key"`
		Column string          `json:"column"`
		RefKey int             `json:"ref_key"`
		Body   json.RawMessage `json:"body"`
	}
	var mu sync.Mutex
	var rounds [][]int
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var items []item
		if err := json.NewDecoder(r.Body).Decode(&items); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		var refs []int
		var out []string
		for _, it := range items {
			refs = append(refs, it.RefKey)
			switch {
			case it.RefKey == 1:
				out = append(out, `{"status":409,"code":"conflict","shard":7,"added_id":3,"epoch":1}`)
			case it.RefKey == 2 && len(rounds) == 0:
				out = append(out, `{"status":503,"code":"unavailable"}`)
			case it.RefKey == 3 && len(rounds) < 2:
				out = append(out, `{"status":504,"code":"outcome_unknown"}`)
			case it.RefKey == 4:
				out = append(out, `{"status":413,"code":"body_too_large","detail":"too large"}`)
			default:
				out = append(out, fmt.Sprintf(`{"status":201,"shard":7,"added_id":%d,"epoch":1,"token":"x"}`, 100+it.RefKey))
			}
		}
		rounds = append(rounds, refs)
		fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(out, ","))
	})
	c := newClient(t, Config{URLs: []string{u}})
	var puts []cellog.Put
	for i := range 6 {
		puts = append(puts, cellog.Put{Key: cellog.Key{Row: key.Row, Column: "BASE", Ref: cellog.RefKey(i)}, Body: []byte(`{"x":"<&>"}`)})
	}
	puts[5].Body = []byte(`{"x":1},{"row_key":"evil"}`)
	got, err := c.PutBatch(t.Context(), "trips", puts)
	if err != nil {
		t.Fatal(err)
	}
	for i, ok := range []bool{
		got[0].Outcome == cellog.Created && got[0].AddedID == 100 && got[0].Err == nil,
		got[1].Outcome == cellog.Conflict && IsConflict(got[1].Err) && got[1].AddedID == 3,
		got[2].Outcome == cellog.Created && got[2].Err == nil,
		got[3].Outcome == cellog.Created && got[3].Err == nil,
		IsRefused(got[4].Err) && strings.Contains(got[4].Err.Error(), "too large"),
		IsRefused(got[5].Err),
	} {
		if !ok {
			t.Errorf("put %d: %+v", i, got[i])
		}
	}
	if fmt.Sprint(rounds) != "[[0 1 2 3 4] [2 3] [3]]" {
		t.Errorf("rounds %v", rounds)
	}
}

func TestPutBatchUnknown(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"results":[{"status":504,"code":"outcome_unknown"}]}`)
	})
	c := newClient(t, Config{URLs: []string{u}, Budget: 20 * time.Millisecond})
	got, err := c.PutBatch(t.Context(), "trips", []cellog.Put{{Key: key, Body: []byte("1")}})
	if err != nil || !IsUnknown(got[0].Err) {
		t.Errorf("%+v, %v", got, err)
	}
	u = serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"results":[]}`) })
	got, err = newClient(t, Config{URLs: []string{u}}).PutBatch(t.Context(), "trips", []cellog.Put{{Key: key, Body: []byte("1")}})
	if !IsUnknown(err) || !IsUnknown(got[0].Err) {
		t.Errorf("a short answer: %+v, %v", got, err)
	}
}

func TestReads(t *testing.T) {
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/BASE/-3"), strings.HasSuffix(r.URL.Path, "/BASE") && r.URL.Query().Get("versions") == "":
			w.Header().Set("Cellog-Ref-Key", "-3")
			w.Header().Set("Cellog-Read-From", "minion")
			w.Header().Set("Cellog-Stale", "true")
			stored(w, 200)
			fmt.Fprint(w, `{"fare":12.50}`)
		case r.URL.Path == "/v1/trips/log/7":
			if r.URL.RawQuery != "after=5&column=BASE&limit=2" {
				t.Error(r.URL.RawQuery)
			}
			fmt.Fprintf(w, `{"cells":[{"row_key":%q,"column":"BASE","ref_key":-3,"shard":7,"added_id":6,"epoch":2,"sequence":4,"created_at":"2026-03-01T00:00:00.000001Z","body":{"a": 1.0}}],"next":"6"}`, key.Row)
		case strings.HasSuffix(r.URL.Path, "/BASE"):
			fmt.Fprint(w, `{"cells":[],"next":null}`)
		case strings.HasSuffix(r.URL.Path, "/indexes/i"):
			fmt.Fprintf(w, `{"q":%q}`, r.URL.Query().Get("f.gte"))
		default:
			problem(w, 404, "not_found")
		}
	})
	c := newClient(t, Config{URLs: []string{u}})
	ctx := t.Context()
	for _, read := range []func() (Cell, error){
		func() (Cell, error) { return c.Get(ctx, "trips", key, ReadOptions{From: cellog.Minion}) },
		func() (Cell, error) {
			return c.Newest(ctx, "trips", cellog.Key{Row: key.Row, Column: "BASE"}, ReadOptions{})
		},
	} {
		cell, err := read()
		if err != nil || string(cell.Body) != `{"fare":12.50}` || cell.Ref != -3 || cell.Shard != 7 || cell.AddedID != 41 || !cell.Stale || cell.ReadFrom != "minion" {
			t.Errorf("%+v, %v", cell, err)
		}
	}
	p, err := c.Log(ctx, "trips", LogQuery{Shard: 7, After: 5, Column: "BASE", Limit: 2})
	if err != nil || len(p.Cells) != 1 || p.Next != "6" || p.Cells[0].Key != key || p.Cells[0].Sequence != 4 || string(p.Cells[0].Body) != `{"a": 1.0}` {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := c.History(ctx, "trips", key, 0, "", ReadOptions{}); err != nil || p.Next != "" || len(p.Cells) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if raw, err := c.IndexQuery(ctx, "trips", "i", url.Values{"f.gte": {"1 2"}}); err != nil || string(raw) != `{"q":"1 2"}` {
		t.Errorf("%s, %v", raw, err)
	}
	if _, err := c.Row(ctx, "trips", key.Row, true, ReadOptions{}); !IsNotFound(err) {
		t.Error(err)
	}
}

// 256 writers use about 256 connections, not one for every put.
func TestConnectionsAreReused(t *testing.T) {
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		stored(w, 201)
		fmt.Fprint(w, `{"shard":7}`)
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c := newClient(t, Config{URLs: []string{s.URL}})
	var wg sync.WaitGroup
	for range 256 {
		wg.Go(func() {
			for range 20 {
				if _, err := put(c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := opened.Load(); n > 600 { // dials that lose a race to a connection that became free stay in the pool
		t.Errorf("%d connections for 256 writers", n)
	}
}

func TestBadConfig(t *testing.T) {
	for _, urls := range [][]string{nil, {"nowhere"}, {"ftp://x"}, {"http://"}} {
		if _, err := New(Config{URLs: urls}); err == nil {
			t.Errorf("%v accepted", urls)
		}
	}
}

func TestProblemOfProxies(t *testing.T) {
	p := problemOf(502, "text/html", []byte("<html>"+strings.Repeat("x", 1000)))
	if e := (&Problem{Status: 400, Code: "invalid_json", Detail: "invalid_json at byte 1: x"}).Error(); e != "invalid_json at byte 1: x (HTTP 400)" {
		t.Error(e)
	}
	if p.Code != "" || len(p.Detail) > 210 || !strings.Contains(p.Error(), "HTTP 502") {
		t.Errorf("%v", p)
	}
	var target *Problem
	if !errors.As(error(&UnknownError{Last: p}), &target) {
		t.Error("the problem is lost")
	}
}
