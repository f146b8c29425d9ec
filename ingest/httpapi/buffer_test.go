package httpapi

import (
	"errors"
	"testing"
)

func TestRejectedAndBuffered(t *testing.T) {
	a := newTestAPI(t, nil)
	for path, want := range map[string]string{
		"/v1/trips/rejected": `{"rejected":[{"row_key":"00000000-0000-0000-0000-000000000000","column":"BASE","ref_key":1,"shard":1,"reason":"conflict",` +
			`"body":{"a":1},"winner":{"epoch":1,"added_id":7,"body":2},"rejected_at":"0001-01-01T00:00:00.000000Z","held_by":"c1"},` +
			`{"row_key":"00000000-0000-0000-0000-000000000000","column":"BASE","ref_key":2,"shard":0,"reason":"column_limit","body":3,` +
			`"rejected_at":"0001-01-01T00:00:00.000000Z","held_by":"c1"}],"next":"0:8","more":true}` + "\n",
		"/v1/trips/rejected?after=0:8": `{"rejected":[],"next":"0:8","more":false}` + "\n",
		"/v1/trips/buffered":           `{"buffered":[{"held_by":"c1/n1","shard":1,"cells":3,"oldest":"1970-01-01T00:00:00Z"}]}` + "\n",
	} {
		if w := do(a, "GET", path, ""); w.Code != 200 || w.Body.String() != want {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Body, want)
		}
	}
	for path, want := range map[string]int{
		"/v1/trips/rejected?limit=0": 400, "/v1/trips/rejected?before=1": 400, "/v1/other/rejected": 404, "/v1/other/buffered": 404, "/v1/trips/buffered?x=1": 400,
	} {
		if w := do(a, "GET", path, ""); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	a = newTestAPI(t, func(_ *Config, f *fake) { f.fault = func(string) error { return errors.New("broken") } })
	for _, path := range []string{"/v1/trips/rejected", "/v1/trips/buffered"} {
		if w := do(a, "GET", path, ""); w.Code != 500 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
