package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/httpapi"
)

func TestPutAndGet(t *testing.T) {
	w := newWorker(t, 2, nil)
	row := uuid.NewString()
	path := "/v1/" + w.ds + "/cells/" + row + "/BASE/1"
	for _, step := range []struct {
		body   string
		status int
		code   string
	}{
		{`{"fare": 12.50, "b": [1, 2]}`, 201, ""},
		{`{"b":[1.0,2],"fare":12.5}`, 200, ""},
		{`{"fare":12.51,"b":[1,2]}`, 409, "conflict"},
	} {
		a := w.do("PUT", path, []byte(step.body), "Content-Type", "application/json")
		if a.status != step.status || a.code() != step.code || a.header.Get("Cellog-Added-Id") != "1" || a.header.Get("Cellog-Token") == "" {
			t.Errorf("put %s: %d %s %v", step.body, a.status, a.body, a.header)
		}
	}
	for _, p := range []string{path, "/v1/" + w.ds + "/cells/" + row + "/BASE"} {
		a := w.do("GET", p, nil)
		if a.status != 200 || string(a.body) != `{"fare":12.5,"b":[1,2]}` && string(a.body) != `{"fare":12.50,"b":[1,2]}` {
			t.Errorf("get %s: %d %s", p, a.status, a.body)
		}
		if a.header.Get("Cellog-Read-From") != "master" || a.header.Get("Cellog-Ref-Key") != "1" {
			t.Errorf("get %s: %v", p, a.header)
		}
		b := w.do("GET", p, nil, "If-None-Match", a.header.Get("ETag"))
		if b.status != 304 || len(b.body) != 0 {
			t.Errorf("get %s with its ETag: %d %s", p, b.status, b.body)
		}
	}
	a := w.do("GET", "/v1/"+w.ds+"/cells/"+row, nil)
	var list struct {
		Cells []struct {
			Column  string          `json:"column"`
			AddedID int             `json:"added_id"`
			Body    json.RawMessage `json:"body"`
		} `json:"cells"`
		Next *string `json:"next"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil || len(list.Cells) != 1 || list.Cells[0].AddedID != 1 || list.Next != nil {
		t.Errorf("row: %d %s %v", a.status, a.body, err)
	}
	if got := w.cells(); got != 1 {
		t.Errorf("%d cells are stored", got)
	}
}

// A batch may have exactly 10,000 cells; every one is answered in its place.
func TestLargestBatch(t *testing.T) {
	w := newWorker(t, 4, func(_ *ingest.Config, c *httpapi.Config) { c.PutTimeout = time.Minute })
	var sb strings.Builder
	rows := make([]string, 10_000)
	for i := range rows {
		rows[i] = uuid.NewString()
		fmt.Fprintf(&sb, `{"row_key":"%s","column":"BASE","ref_key":%d,"body":{"i":%d}}`+"\n", rows[i], i, i)
	}
	for _, want := range []int{201, 200} {
		a := w.do("POST", "/v1/"+w.ds+"/cells", []byte(sb.String()), "Content-Type", "application/x-ndjson")
		var got struct {
			Results []struct {
				Status int
				Shard  cellog.ShardID
			}
		}
		if err := json.Unmarshal(a.body, &got); err != nil || len(got.Results) != len(rows) {
			t.Fatalf("%d %.300s", a.status, a.body)
		}
		for i, r := range got.Results {
			if r.Status != want || r.Shard != cellog.ShardOf(uuid.MustParse(rows[i]), 4) {
				t.Fatalf("item %d: %+v, want %d", i, r, want)
			}
		}
	}
	if n := w.cells(); n != len(rows) {
		t.Errorf("%d cells", n)
	}
}
