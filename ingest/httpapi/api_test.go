package httpapi

import (
	"bufio"
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
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

const aRow = "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77" // of shard 1 of 2

func do(a *API, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func codeOf(w *httptest.ResponseRecorder) string {
	var p struct{ Code string }
	_ = json.Unmarshal(w.Body.Bytes(), &p) // no document, no code
	return p.Code
}

// codedError is an error of another part, with a code and maybe a status.
type codedError struct {
	code   string
	status int
}

func (e codedError) Error() string { return "secret words about " + e.code }
func (e codedError) Code() string  { return e.code }
func (e codedError) Status() int   { return e.status }

// What an error means for a put is in its status, and a 5xx tells nothing else.
func TestErrorsBecomeStatuses(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{codedError{"unavailable", 0}, 503, "unavailable"},
		{codedError{"outcome_unknown", 0}, 504, "outcome_unknown"},
		{codedError{"column_limit", 0}, 422, "column_limit"},
		{fmt.Errorf("wrapped: %w", codedError{"overloaded", 0}), 429, "overloaded"},
		{codedError{"damaged", 0}, 500, "damaged"},
		{codedError{"of_another_part", 418}, 418, "of_another_part"},
		{codedError{"nobody_knows", 0}, 500, "internal"},
		{errors.New("dial tcp 10.0.0.1: password of root is x"), 500, "internal"},
		{context.DeadlineExceeded, 503, "deadline"},
	} {
		a := newTestAPI(t, func(_ *Config, f *fake) { f.fault = func(string) error { return c.err } })
		for _, w := range []*httptest.ResponseRecorder{do(a, "PUT", "/v1/trips/cells/"+aRow+"/BASE/1", `1`), do(a, "GET", "/v1/trips/cells/"+aRow+"/BASE", "")} {
			if w.Code != c.status || codeOf(w) != c.code {
				t.Errorf("%v: %d %s", c.err, w.Code, w.Body)
			}
			if w.Code >= 500 && (strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), "password")) {
				t.Errorf("%v: the answer tells too much: %s", c.err, w.Body)
			}
			if (w.Code == 429 || w.Code == 503) != (w.Header().Get("Retry-After") != "") {
				t.Errorf("%v: %d with Retry-After %q", c.err, w.Code, w.Header().Get("Retry-After"))
			}
		}
	}
}

func TestPanicIsAProblem(t *testing.T) {
	a := newTestAPI(t, func(_ *Config, f *fake) {
		f.fault = func(method string) error {
			if method == "Newest" {
				f.mu.Unlock()
				panic("a bug")
			}
			return nil
		}
	})
	if w := do(a, "GET", "/v1/trips/cells/"+aRow+"/BASE", ""); w.Code != 500 || codeOf(w) != "internal" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := do(a, "PUT", "/v1/trips/cells/"+aRow+"/BASE/1", `1`); w.Code != 201 {
		t.Errorf("after a panic: %d %s", w.Code, w.Body)
	}
}

type list struct {
	Cells []struct {
		Column   string `json:"column"`
		RefKey   int64  `json:"ref_key"`
		AddedID  int64  `json:"added_id"`
		Sequence int64  `json:"sequence"`
		ReadFrom string `json:"read_from"`
		Body     any    `json:"body"`
	} `json:"cells"`
	Next  *string `json:"next"`
	UpTo  *int64  `json:"up_to"`
	Final *int64  `json:"final"`
}

// pages reads a list to its end.
func pages(t *testing.T, a *API, path, cursor string) (out []string, answers int) {
	t.Helper()
	next := ""
	for {
		p := path
		if next != "" {
			p += "&" + cursor + "=" + url.QueryEscape(next)
		}
		w := do(a, "GET", p, "")
		var l list
		if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d %s", p, w.Code, w.Body)
		}
		for _, c := range l.Cells {
			out = append(out, fmt.Sprintf("%s/%d@%d#%d", c.Column, c.RefKey, c.AddedID, c.Sequence))
		}
		if answers++; l.Next == nil {
			return out, answers
		}
		next = *l.Next
	}
}

func TestListsPageThrough(t *testing.T) {
	final := cellog.AddedID(5)
	a := newTestAPI(t, func(c *Config, _ *fake) {
		c.Final = func(string, cellog.ShardID) (cellog.AddedID, bool) { return final, true }
	})
	for _, p := range []string{"A/9223372036854775807", "A/-9223372036854775808", "B/1", "A/3", "AA/1", "B/2", "A/4"} {
		if w := do(a, "PUT", "/v1/trips/cells/"+aRow+"/"+p, `{"p":"`+p+`"}`); w.Code != 201 {
			t.Fatalf("%s: %d %s", p, w.Code, w.Body)
		}
	}
	for _, c := range []struct{ path, cursor, want string }{
		{"/v1/trips/cells/" + aRow + "/A?versions=all&limit=1", "cursor", "A/-9223372036854775808@2#0 A/3@4#0 A/4@7#0 A/9223372036854775807@1#0"},
		{"/v1/trips/cells/" + aRow + "?versions=all&limit=1", "cursor", "A/-9223372036854775808@2#0 A/3@4#0 A/4@7#0 A/9223372036854775807@1#0 AA/1@5#0 B/1@3#0 B/2@6#0"},
		{"/v1/trips/cells/" + aRow + "?versions=all&limit=3", "cursor", "A/-9223372036854775808@2#0 A/3@4#0 A/4@7#0 A/9223372036854775807@1#0 AA/1@5#0 B/1@3#0 B/2@6#0"},
		{"/v1/trips/cells/" + aRow + "?limit=2", "cursor", "A/9223372036854775807@1#0 AA/1@5#0 B/2@6#0"},
		{"/v1/trips/log/1?limit=2", "after", "A/9223372036854775807@1#1 A/-9223372036854775808@2#2 B/1@3#1 A/3@4#3 AA/1@5#1"},
		{"/v1/trips/log/1?limit=2&provisional=1", "after", "A/9223372036854775807@1#1 A/-9223372036854775808@2#2 B/1@3#1 A/3@4#3 AA/1@5#1 B/2@6#0 A/4@7#0"},
		{"/v1/trips/log/1?limit=2&column=A", "after", "A/9223372036854775807@1#1 A/-9223372036854775808@2#2 A/3@4#3"},
		{"/v1/trips/log/0?limit=2", "after", ""},
		{"/v1/trips/log/1?since=2200-01-01T00:00:00Z", "after", ""},
	} {
		got, n := pages(t, a, c.path, c.cursor)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v\nwant %s", c.path, got, c.want)
		}
		if strings.Contains(c.path, "limit=1") && n < len(got) {
			t.Errorf("%s: %d cells in %d answers", c.path, len(got), n)
		}
	}
}

func TestLogWithoutPositions(t *testing.T) {
	a := newTestAPI(t, nil)
	if w := do(a, "GET", "/v1/trips/log/1", ""); w.Code != 503 || codeOf(w) != "final_unknown" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := do(a, "GET", "/v1/trips/log/1?provisional=1", ""); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestStates(t *testing.T) {
	a := newTestAPI(t, func(c *Config, _ *fake) {
		c.Final = func(string, cellog.ShardID) (cellog.AddedID, bool) { return 0, true }
	})
	do(a, "PUT", "/v1/trips/cells/"+aRow+"/BASE/1", `1`)
	for path, want := range map[string]string{"BASE/1": `{"state":"stored","final":false,"cell":{"shard":1,"added_id":1,`, "BASE/2": `{"state":"rejected","rejected":[{"reason":"conflict","winner":{"epoch":1,"added_id":7}`} {
		if w := do(a, "GET", "/v1/trips/cells/"+aRow+"/"+path+"/state", ""); w.Code != 200 || !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

type fakeIndex struct{}

func (fakeIndex) Query(_ context.Context, ds, index string, params url.Values) (any, error) {
	if index != "driver_index" {
		return nil, codedError{"unknown_index", 404}
	}
	return map[string]any{"ds": ds, "params": params}, nil
}

func TestIndexQueriesAreHandedOn(t *testing.T) {
	a := newTestAPI(t, func(c *Config, _ *fake) { c.Index = fakeIndex{} })
	if w := do(a, "GET", "/v1/trips/indexes/driver_index?driver=x&fare.gte=3", ""); w.Code != 200 || w.Body.String() != `{"ds":"trips","params":{"driver":["x"],"fare.gte":["3"]}}`+"\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := do(a, "GET", "/v1/trips/indexes/nosuch", ""); w.Code != 404 || codeOf(w) != "unknown_index" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := do(newTestAPI(t, nil), "GET", "/v1/trips/indexes/driver_index", ""); w.Code != 503 || codeOf(w) != "no_indexes" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// marks is a FinalMark that a test moves.
type marks struct {
	mu sync.Mutex
	m  map[cellog.ShardID]cellog.AddedID
}

func (f *marks) get(_ string, s cellog.ShardID) (cellog.AddedID, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m[s], true
}

func (f *marks) set(s cellog.ShardID, id cellog.AddedID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m[s] = id
}

// A stream shows final cells only, in order, each once, over a reconnect.
func TestEvents(t *testing.T) {
	m := &marks{m: map[cellog.ShardID]cellog.AddedID{}}
	a := newTestAPI(t, func(c *Config, _ *fake) { c.Final, c.PollWait = m.get, 50*time.Millisecond })
	srv := NewServer(a, "127.0.0.1:0")
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	base := "http://" + srv.Addr()
	put := func(column string, ref int) {
		t.Helper()
		if w := do(a, "PUT", fmt.Sprintf("/v1/trips/cells/%s/%s/%d", aRow, column, ref), fmt.Sprint(ref)); w.Code != 201 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	poll := func(since string) list {
		t.Helper()
		w := do(a, "GET", "/v1/trips/columns/BASE/events?since="+since, "")
		var l list
		if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != 200 || l.Next == nil {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return l
	}
	put("BASE", 1)
	put("STATUS", 1)
	put("BASE", 2)
	put("BASE", 3)
	if l := poll("zero"); len(l.Cells) != 0 {
		t.Errorf("cells that are not final: %v", l)
	}
	m.set(1, 3)
	l := poll("zero")
	if len(l.Cells) != 2 || l.Cells[0].RefKey != 1 || l.Cells[1].RefKey != 2 || l.Cells[1].Sequence != 2 {
		t.Errorf("%+v", l)
	}
	if l := poll(*l.Next); len(l.Cells) != 0 {
		t.Errorf("seen twice: %v", l)
	}
	if l := poll("latest"); len(l.Cells) != 0 {
		t.Errorf("latest: %v", l)
	}
	stream := func(id string) (*bufio.Scanner, func()) {
		req, err := http.NewRequest("GET", base+"/v1/trips/columns/BASE/events?since=zero&shards=0-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		if id != "" {
			req.Header.Set("Last-Event-ID", id)
		}
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%v %v", resp, err)
		}
		return bufio.NewScanner(resp.Body), func() { resp.Body.Close() }
	}
	next := func(s *bufio.Scanner) (id, ref string) {
		for s.Scan() {
			if v, ok := strings.CutPrefix(s.Text(), "id: "); ok {
				id = v
			}
			if v, ok := strings.CutPrefix(s.Text(), "data: "); ok {
				var c struct {
					RefKey int64 `json:"ref_key"`
				}
				if err := json.Unmarshal([]byte(v), &c); err != nil {
					t.Fatal(err)
				}
				return id, fmt.Sprint(c.RefKey)
			}
		}
		return "", fmt.Sprint("end: ", s.Err())
	}
	s, closeStream := stream("")
	if !s.Scan() || !strings.HasPrefix(s.Text(), ":") {
		t.Errorf("a stream begins with %q, want a comment", s.Text())
	}
	id, first := next(s)
	closeStream()
	s, closeStream = stream(id)
	defer closeStream()
	_, second := next(s)
	m.set(1, 4)
	_, third := next(s)
	if first+second+third != "123" {
		t.Errorf("events %s, %s, %s", first, second, third)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := srv.Stop(ctx); err != nil { // an open stream must not hold it up
		t.Error(err)
	}
	if err := srv.Stop(ctx); err != nil {
		t.Errorf("stopped twice: %v", err)
	}
}

// A body that stalls is given up; the memory of all bodies is bounded.
func TestBodiesAreBounded(t *testing.T) {
	a := newTestAPI(t, func(c *Config, _ *fake) { c.RequestBytes, c.BodyTimeout = 10_000, 50*time.Millisecond })
	srv := httptest.NewServer(a)
	defer srv.Close()
	path := "/v1/trips/cells/" + aRow + "/BASE/1"
	if w := do(a, "PUT", path, `"`+strings.Repeat("x", 20_000)+`"`); w.Code != 429 || codeOf(w) != "overloaded" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := a.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
	r, wr := io.Pipe()
	defer wr.Close()
	go io.WriteString(wr, `{"a":`)
	req, err := http.NewRequest("PUT", srv.URL+path, r)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 408 {
		t.Errorf("a stalled body: %d", resp.StatusCode)
	}
	if w := do(a, "PUT", path, `1`); w.Code != 201 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := a.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
}

func TestTraceparentIsStored(t *testing.T) {
	a := newTestAPI(t, nil)
	trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	path := "/v1/trips/cells/" + uuid.NewString() + "/BASE/1"
	do(a, "PUT", path, `1`, "Traceparent", trace)
	if w := do(a, "GET", path, ""); w.Header().Get("Cellog-Traceparent") != trace {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

// A client that sends its body a byte at a time does not decide how a worker
// ends: when the grace is over it is cut off, and that is no error.
func TestStopCutsOffADawdler(t *testing.T) {
	a := newTestAPI(t, nil)
	srv := NewServer(a, "127.0.0.1:0")
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "PUT /v1/trips/cells/%s/BASE/1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n1", aRow); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(10 * time.Second); a.bytes.Load() == 0; time.Sleep(time.Millisecond) { // it has begun to read
		if time.Now().After(limit) {
			t.Fatal("the request was not begun")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := srv.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := a.cfg.Ingest.Stop(ctx); err != nil { // nothing was queued
		t.Errorf("ingest: %v", err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := io.ReadAll(c); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection lives on")
	}
}

// A body that arrives a byte at a time is answered 408 when its time is up,
// whatever the client goes on to send, and the connection is closed.
func TestTrickledBody(t *testing.T) {
	a := newTestAPI(t, func(c *Config, _ *fake) { c.BodyTimeout = 100 * time.Millisecond })
	srv := NewServer(a, "127.0.0.1:0")
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "PUT /v1/trips/cells/%s/BASE/1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n", aRow); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan struct{})
	defer close(ended)
	wg.Go(func() {
		for {
			if _, err := c.Write([]byte("1")); err != nil {
				return
			}
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 408 || !strings.Contains(string(text), "body_timeout") || !resp.Close {
		t.Errorf("%d %s, close %v, %v", resp.StatusCode, text, resp.Close, err)
	}
}
