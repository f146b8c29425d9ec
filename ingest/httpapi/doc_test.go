package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

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

// What Go's HTTP server answers by itself, without a document, is in the prose; it
// never comes to our handler.
func TestAnswersBeforeOursAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	_, prose, _ := strings.Cut(string(text), "answered by Go's HTTP server itself")
	prose, _, _ = strings.Cut(prose, "\n\n")
	a := newTestAPI(t, nil)
	srv := NewServer(a, "127.0.0.1:0")
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	const put = "PUT /v1/trips/cells/" + aRow + "/BASE/1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for status, request := range map[int]string{
		201: put + "Expect: 100-continue\r\nContent-Length: 1\r\nConnection: close\r\n\r\n1",
		400: "hello\r\n\r\n",
		417: put + "Expect: 200-ok\r\nContent-Length: 1\r\n\r\n1",
		431: put + "X: " + strings.Repeat("x", 2<<20) + "\r\n\r\n",
		501: put + "Transfer-Encoding: gzip\r\n\r\n",
		505: strings.Replace(put, "HTTP/1.1", "HTTP/3.0", 1) + "\r\n",
	} {
		c, err := net.Dial("tcp", srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // a connection takes deadlines
		_, _ = c.Write([]byte(request))                     // it may be answered before all is sent
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		for err == nil && resp.StatusCode == http.StatusContinue {
			resp, err = http.ReadResponse(r, nil)
		}
		if err != nil || resp.StatusCode != status || !resp.Close {
			t.Errorf("%d: %+v %v", status, resp, err)
		} else if status >= 400 && (resp.Header.Get("Content-Type") == "application/problem+json" || !strings.Contains(prose, fmt.Sprint(status))) {
			t.Errorf("%d: %v; the prose says:%s", status, resp.Header, prose)
		}
		if resp != nil && resp.Body != nil {
			_ = resp.Body.Close()
		}
		_ = c.Close() // nothing is pending on it
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
