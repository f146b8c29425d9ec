package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cellog/cellog/schemas/openapi"
)

func TestErrorsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (\\d+) \\| ([^|]+) \\|").FindAllStringSubmatch(string(text), -1) {
		got[m[1]] = m[2] + " " + m[3]
	}
	want := map[string]string{}
	for code, info := range codes {
		want[code] = fmt.Sprintf("%d %s", info.status, info.title)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/errors.md differs from the table (-code +doc):\n%s", d)
	}
}

// Every route of the table is in the document, and nothing else is; every
// request that the document describes reaches its handler.
func TestOpenAPIIsTrue(t *testing.T) {
	a := newTestAPI(t, nil)
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct{ Name, In string }
			Responses   map[string]any
		}
	}
	if err := json.Unmarshal(a.OpenAPI(), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("openapi %q: %v", doc.OpenAPI, err)
	}
	described := map[string]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			described[strings.ToUpper(method)+" "+path] = op.OperationID
			url := strings.NewReplacer("{ds}", "trips", "{row_key}", "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77", "{column}", "BASE", "{ref_key}", "1", "{shard}", "0", "{index}", "x").Replace(path)
			rt, _, err := a.match(httptest.NewRequest(strings.ToUpper(method), url, nil))
			if err != nil || rt.id != op.OperationID {
				t.Errorf("%s %s: %v", method, url, err)
				continue
			}
			query := map[string]bool{}
			for _, p := range op.Parameters {
				if p.In == "query" {
					query[p.Name] = true
				}
			}
			if rt.params != nil && !cmp.Equal(query, rt.params) {
				t.Errorf("%s %s: parameters %v, the route takes %v", method, path, query, rt.params)
			}
			if len(op.Responses) == 0 {
				t.Errorf("%s %s has no answers", method, path)
			}
		}
	}
	routed := map[string]string{}
	for _, rt := range a.routes {
		if rt.internal {
			continue
		}
		routed[rt.method+" "+rt.path] = rt.id
		for _, c := range rt.doc.codes {
			if _, ok := codes[c]; !ok {
				t.Errorf("%s: code %s is not in the table", rt.id, c)
			}
		}
	}
	if d := cmp.Diff(routed, described); d != "" {
		t.Errorf("routes and document differ (-routes +document):\n%s", d)
	}
	if !json.Valid(openapi.JSON) || string(openapi.JSON) != string(a.OpenAPI()) {
		if os.Getenv("CELLOG_UPDATE") != "" {
			if err := os.WriteFile("../../schemas/openapi/openapi.json", a.OpenAPI(), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Error("schemas/openapi/openapi.json is not what is served; CELLOG_UPDATE=1 writes it anew")
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if w.Code != 200 || w.Body.String() != string(a.OpenAPI()) {
		t.Errorf("GET /openapi.json: %d", w.Code)
	}
}
