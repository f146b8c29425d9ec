package httpapi

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/forward"
)

func TestForwardedCells(t *testing.T) {
	stored, err := body.Encode(nil, []byte(`{"a":1}`), body.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	put := cellog.Put{Key: cellog.Key{Row: uuid.MustParse(aRow), Column: "BASE", Ref: 1}, Body: stored}
	good := string(forward.AppendPuts(nil, []cellog.Put{put}))
	a := newTestAPI(t, func(c *Config, _ *fake) { c.Worker = "me" })
	for _, c := range []struct {
		name, path, worker, media, body string
		status                          int
		code                            string
	}{
		{"another worker's", forward.Path("trips"), "you", forward.MediaType, good, 421, "misdirected"},
		{"a client's", forward.Path("trips"), "", forward.MediaType, good, 421, "misdirected"},
		{"no such datastore", forward.Path("other"), "me", forward.MediaType, good, 404, "unknown_datastore"},
		{"JSON", forward.Path("trips"), "me", "application/json", "[]", 415, "unsupported_media_type"},
		{"cut", forward.Path("trips"), "me", forward.MediaType, good[:len(good)-1], 400, "bad_batch"},
		{"another version", forward.Path("trips"), "me", forward.MediaType, "\xff" + good[1:], 400, "bad_batch"},
		{"empty", forward.Path("trips"), "me", forward.MediaType, "", 400, "bad_batch"},
	} {
		w := do(a, "POST", c.path, c.body, forward.WorkerHeader, c.worker, "Content-Type", c.media)
		if w.Code != c.status || codeOf(w) != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, w.Code, w.Body, c.status, c.code)
		}
	}
	send := func(p cellog.Put) forward.Result {
		t.Helper()
		w := do(a, "POST", forward.Path("trips"), string(forward.AppendPuts(nil, []cellog.Put{p})), forward.WorkerHeader, "me", "Content-Type", forward.MediaType)
		res, err := forward.ParseResults(w.Body.Bytes(), 1)
		if w.Code != 200 || w.Header().Get("Content-Type") != forward.MediaType || err != nil {
			t.Fatalf("%d, %v, %s", w.Code, err, w.Body)
		}
		return res[0]
	}
	if r := send(put); r.Err != nil || r.Stored.Outcome != cellog.Created || r.Stored.AddedID != 1 {
		t.Errorf("%+v", r)
	}
	if r := send(put); r.Err != nil || r.Stored.Outcome != cellog.Same {
		t.Errorf("again: %+v", r)
	}
	put.Body = []byte("not in stored form")
	if r := send(put); r.Err == nil {
		t.Errorf("hostile body: %+v", r)
	}
	small := newTestAPI(t, func(c *Config, _ *fake) {
		c.Worker, c.BatchBytes, c.Limits = "me", 100, body.Limits{Bytes: 50, Depth: 10}
	})
	for size, want := range map[int]int{200: 400, 201: 413} { // 100 and twice 50; the cells are cut short
		if w := do(small, "POST", forward.Path("trips"), "\x01"+strings.Repeat("x", size-1), forward.WorkerHeader, "me", "Content-Type", forward.MediaType); w.Code != want {
			t.Errorf("%d bytes: %d %s, want %d", size, w.Code, w.Body, want)
		}
	}
	if w := do(newTestAPI(t, nil), "POST", forward.Path("trips"), good, forward.WorkerHeader, "", "Content-Type", forward.MediaType); w.Code != 421 {
		t.Errorf("a worker without a name takes forwarded cells: %d", w.Code)
	}
}
