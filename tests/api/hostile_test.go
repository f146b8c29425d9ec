package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
)

const row = "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77"

func zip(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text) // a bytes.Buffer takes all
	_ = z.Close()
	return b.Bytes()
}

// hostile is a request that must be refused with a code.
type hostile struct {
	name, method, path string
	body               []byte
	headers            []string
	status             int
	code               string
}

func hostiles(ds string) []hostile {
	const js = "application/json"
	cell := func(row, column, ref string) string { return "/v1/" + ds + "/cells/" + row + "/" + column + "/" + ref }
	good := cell(row, "BASE", "1")
	var out []hostile
	add := func(name, method, path, body string, status int, code string, headers ...string) {
		if method != "GET" && len(headers) == 0 {
			headers = []string{"Content-Type", js}
		}
		out = append(out, hostile{name, method, path, []byte(body), headers, status, code})
	}
	for name, id := range map[string]string{"short uuid": row[:35], "long uuid": row + "0", "braces": "%7B" + row + "%7D", "no hyphens": strings.ReplaceAll(row, "-", ""),
		"letter g": row[:35] + "g", "word": "me", "nul": "%00" + row[1:], "bad escape in utf-8": "%ff" + row[1:]} {
		add("row_key: "+name, "PUT", cell(id, "BASE", "1"), `1`, 400, "bad_row_key")
	}
	for name, col := range map[string]string{"underscore first": "_all", "digit first": "1A", "dash": "A-B", "65 letters": strings.Repeat("A", 65), "quote": "A'%20OR%201", "newline": "BASE%0A", "utf-8": "%C3%89TAT", "slash": "A%2FB"} {
		add("column: "+name, "PUT", cell(row, col, "1"), `1`, 400, "bad_column")
	}
	for name, ref := range map[string]string{"past int64": "9223372036854775808", "below int64": "-9223372036854775809", "float": "1.0", "exponent": "1e3", "plus": "%2B1", "leading zero": "01", "minus zero": "-0", "word": "one", "space": "1%20", "hex": "0x1"} {
		add("ref_key: "+name, "PUT", cell(row, "BASE", ref), `1`, 400, "bad_ref_key")
	}
	for _, b := range []struct{ name, body, code string }{
		{"empty", "", "empty_body"}, {"blank", " \n\t", "empty_body"}, {"duplicate key", `{"a":1,"a":2}`, "duplicate_key"},
		{"duplicate key, escaped", `{"a":1,"\u0061":2}`, "duplicate_key"}, {"deep duplicate key", `[{"x":{"a":1,"a":1}}]`, "duplicate_key"},
		{"bad utf-8", "\"\xff\"", "invalid_utf8"}, {"bad utf-8 in a key", "{\"\xc3\x28\":1}", "invalid_utf8"}, {"NaN", `NaN`, "invalid_json"},
		{"Infinity", `[Infinity]`, "invalid_json"}, {"cut off", `{"a":`, "invalid_json"}, {"two values", `1 2`, "invalid_json"}, {"trailing comma", `[1,]`, "invalid_json"},
		{"single quotes", `{'a':1}`, "invalid_json"}, {"comment", `{"a":1/**/}`, "invalid_json"}, {"leading zero", `01`, "invalid_json"}, {"control character", "\"a\nb\"", "invalid_json"},
		{"lone surrogate", `"\ud800"`, ""}, {"bare word", `hello`, "invalid_json"}, {"nul bytes", "\x00\x00", "invalid_json"}, {"UTF-16", "\xff\xfe\"\x00a\x00\"\x00", "invalid_utf8"},
		{"1,001 deep", strings.Repeat("[", 1001) + strings.Repeat("]", 1001), "too_deep"}, {"10,000 deep", strings.Repeat("[", 10000) + strings.Repeat("]", 10000), "too_deep"},
		{"100,000 deep objects, open", strings.Repeat(`{"a":`, 100000), "too_deep"}, {"byte order mark", "\xef\xbb\xbf1", "invalid_json"},
	} {
		add("body: "+b.name, "PUT", good, b.body, 400, b.code)
	}
	add("body: past 8 MiB", "PUT", good, `"`+strings.Repeat("x", 8<<20)+`"`, 413, "body_too_large")
	for name, ct := range map[string]string{"form": "application/x-www-form-urlencoded", "text": "text/plain", "xml": "application/xml", "latin1": "application/json; charset=iso-8859-1", "malformed": "application/json; charset", "lines": "application/x-ndjson"} {
		add("content type: "+name, "PUT", good, `1`, 415, "unsupported_media_type", "Content-Type", ct)
	}
	add("encoding: br", "PUT", good, `1`, 415, "unsupported_encoding", "Content-Type", js, "Content-Encoding", "br")
	whole := string(zip(`{"a":1}`))
	add("gzip: cut off", "PUT", good, whole[:len(whole)-6], 400, "bad_encoding", "Content-Type", js, "Content-Encoding", "gzip")
	add("gzip: not gzip", "PUT", good, `{"a":1}`, 400, "bad_encoding", "Content-Type", js, "Content-Encoding", "gzip")
	add("gzip: bad checksum", "PUT", good, whole[:len(whole)-8]+"12345678", 400, "bad_encoding", "Content-Type", js, "Content-Encoding", "gzip")
	add("gzip: empty", "PUT", good, "", 400, "bad_encoding", "Content-Type", js, "Content-Encoding", "gzip")
	add("gzip: bomb", "PUT", good, string(zip(`"`+strings.Repeat("0", 256<<20)+`"`)), 413, "body_too_large", "Content-Type", js, "Content-Encoding", "gzip")
	add("traceparent: short", "PUT", good, `1`, 400, "bad_traceparent", "Content-Type", js, "Traceparent", "00-abc")
	add("traceparent: zero", "PUT", good, `1`, 400, "bad_traceparent", "Content-Type", js, "Traceparent", "00-00000000000000000000000000000000-b7ad6b7169203331-01")
	add("huge header", "PUT", good, `1`, 431, "headers_too_large", "Content-Type", js, "X-Big", strings.Repeat("x", 100<<10))
	add("long URL", "GET", "/v1/"+ds+"/cells/"+strings.Repeat("x", 200<<10), "", 414, "uri_too_long")
	add("datastore: upper case", "PUT", "/v1/Trips/cells/"+row+"/BASE/1", `1`, 400, "bad_datastore")
	add("datastore: unknown", "PUT", "/v1/nosuch/cells/"+row+"/BASE/1", `1`, 404, "unknown_datastore")
	add("datastore: sql", "GET", "/v1/t1%60;drop/cells/"+row, "", 400, "bad_datastore")
	add("path: unknown", "GET", "/v2/x", "", 404, "unknown_route")
	add("path: root", "GET", "/", "", 404, "unknown_route")
	add("path: empty segment", "PUT", "/v1//cells/"+row+"/BASE/1", `1`, 404, "unknown_route")
	add("path: slash at the end", "PUT", good+"/", `1`, 404, "unknown_route")
	add("path: dots", "GET", "/v1/"+ds+"/../admin", "", 404, "unknown_route")
	add("method: DELETE", "DELETE", good, "", 405, "method_not_allowed")
	add("method: POST", "POST", good, `1`, 405, "method_not_allowed")
	add("method: nonsense", "BREW", good, `1`, 405, "method_not_allowed")
	add("parameter: unknown", "PUT", good+"?overwrite=1", `1`, 400, "bad_parameter")
	add("parameter: read", "GET", good+"?read=slave", "", 400, "bad_parameter")
	add("parameter: twice", "GET", good+"?read=master&read=minion", "", 400, "bad_parameter")
	add("parameter: limit 0", "GET", "/v1/"+ds+"/cells/"+row+"?limit=0", "", 400, "bad_parameter")
	add("parameter: limit 1001", "GET", "/v1/"+ds+"/cells/"+row+"?limit=1001", "", 400, "bad_parameter")
	add("parameter: versions", "GET", "/v1/"+ds+"/cells/"+row+"?versions=some", "", 400, "bad_parameter")
	add("parameter: limit without versions", "GET", "/v1/"+ds+"/cells/"+row+"/BASE?limit=0", "", 400, "bad_parameter")
	add("parameter: cursor without versions", "GET", "/v1/"+ds+"/cells/"+row+"/BASE?cursor=AAAA", "", 400, "bad_parameter")
	add("parameter: malformed", "GET", good+"?read=%zz", "", 400, "bad_parameter")
	add("cursor: nonsense", "GET", "/v1/"+ds+"/cells/"+row+"/BASE?versions=all&cursor=xyz", "", 400, "bad_cursor")
	add("cursor: of another list", "GET", "/v1/"+ds+"/cells/"+row+"/BASE?versions=all&cursor=cjEgQkFTRQ", "", 400, "bad_cursor")
	add("shard: past the last", "GET", "/v1/"+ds+"/log/16?provisional=1", "", 404, "unknown_shard")
	add("shard: word", "GET", "/v1/"+ds+"/log/one", "", 400, "bad_shard")
	add("shard: negative", "GET", "/v1/"+ds+"/log/-1?provisional=1", "", 404, "unknown_shard")
	add("log: after and since", "GET", "/v1/"+ds+"/log/0?provisional=1&after=1&since=2020-01-01T00:00:00Z", "", 400, "bad_parameter")
	add("log: since", "GET", "/v1/"+ds+"/log/0?provisional=1&since=yesterday", "", 400, "bad_parameter")
	add("log: after", "GET", "/v1/"+ds+"/log/0?provisional=1&after=-1", "", 400, "bad_parameter")
	add("events: shards", "GET", "/v1/"+ds+"/columns/BASE/events?since=zero&shards=3-99", "", 400, "bad_parameter")
	add("events: cursor", "GET", "/v1/"+ds+"/columns/BASE/events?since=AQ__", "", 400, "bad_cursor")
	item := `{"row_key":"` + row + `","column":"BASE","ref_key":1,"body":1}`
	for _, b := range []struct{ name, body, code string }{
		{"empty", "", "empty_body"}, {"object", item, "bad_batch"}, {"cut off", `[` + item + `,{"row_key":"`, "bad_batch"}, {"not closed", `[` + item, "bad_batch"},
		{"two arrays", `[` + item + `][]`, "bad_batch"}, {"not JSON", `[` + item + `,nope]`, "bad_batch"}, {"word", `cells`, "bad_batch"}, {"no comma", `[` + item + item + `]`, "bad_batch"},
	} {
		add("batch: "+b.name, "POST", "/v1/"+ds+"/cells", b.body, 400, b.code)
	}
	add("lines: cut off", "POST", "/v1/"+ds+"/cells", item+"\n"+item[:40], 400, "bad_batch", "Content-Type", "application/x-ndjson")
	add("lines: garbage", "POST", "/v1/"+ds+"/cells", item+"\n}\n", 400, "bad_batch", "Content-Type", "application/x-ndjson")
	many := strings.Repeat(item+",", 10001)
	add("batch: 10,001 cells", "POST", "/v1/"+ds+"/cells", "["+strings.TrimSuffix(many, ",")+"]", 413, "too_many_cells")
	add("lines: 10,001 cells", "POST", "/v1/"+ds+"/cells", strings.Repeat(item+"\n", 10001), 413, "too_many_cells", "Content-Type", "application/x-ndjson")
	add("batch: past 64 MiB", "POST", "/v1/"+ds+"/cells", `["`+strings.Repeat("x", 64<<20)+`"]`, 413, "batch_too_large")
	add("gets: not an array", "POST", "/v1/"+ds+"/cells/get", `{}`, 400, "bad_batch")
	add("gets: form", "POST", "/v1/"+ds+"/cells/get", `[]`, 415, "unsupported_media_type", "Content-Type", "text/csv")
	return out
}

// Each hostile request gets a 4xx with its code, nothing is stored, and the
// connection lives on.
func TestHostileRequests(t *testing.T) {
	w := newWorker(t, 16, nil)
	w.final.set(0, 0)
	list := hostiles(w.ds)
	if len(list) < 60 {
		t.Fatalf("only %d requests", len(list))
	}
	for _, h := range list {
		t.Run(h.name, func(t *testing.T) {
			a := w.do(h.method, h.path, h.body, h.headers...)
			var p struct {
				Code, Title string
				Status      int
			}
			if err := json.Unmarshal(a.body, &p); err != nil || p.Status != a.status || p.Title == "" || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%d %v %.300s: no problem document", a.status, a.header, a.body)
			}
			if a.status != h.status || h.code != "" && p.Code != h.code || p.Code == "" {
				t.Errorf("%d %s, want %d %s", a.status, a.body, h.status, h.code)
			}
			if len(a.body) > 4096 {
				t.Errorf("the answer has %d bytes", len(a.body))
			}
			if a.header.Get("Connection") == "close" {
				t.Error("the connection was closed")
			}
		})
	}
	if n := w.cells(); n != 0 {
		t.Errorf("%d cells were stored", n)
	}
}

// Items of a sound batch are refused one by one.
func TestHostileItems(t *testing.T) {
	w := newWorker(t, 2, nil)
	k := `"row_key":"` + row + `","column":"BASE","ref_key":`
	items := []struct {
		item, code string
		status     int
	}{
		{`{` + k + `1,"body":{"a":1}}`, "", 201},
		{`{` + k + `1,"body":{"a":1.0}}`, "", 200},
		{`{` + k + `1,"body":2}`, "conflict", 409},
		{`{` + k + `"2","body":null}`, "", 201},
		{`{` + k + `3}`, "bad_item", 400},
		{`{` + k + `3,"body":1,"extra":1}`, "bad_item", 400},
		{`{` + k + `3,"body":1,"body":2}`, "bad_item", 400},
		{`{` + k + `3.5,"body":1}`, "bad_ref_key", 400},
		{`{` + k + `9223372036854775808,"body":1}`, "bad_ref_key", 400},
		{`{` + k + `null,"body":1}`, "bad_ref_key", 400},
		{`{"row_key":7,"column":"BASE","ref_key":1,"body":1}`, "bad_row_key", 400},
		{`{"row_key":"x","column":"BASE","ref_key":1,"body":1}`, "bad_row_key", 400},
		{`{"row_key":"` + row + `","column":"_x","ref_key":1,"body":1}`, "bad_column", 400},
		{`{"column":"BASE","ref_key":1,"body":1}`, "bad_row_key", 400},
		{`[]`, "bad_item", 400},
		{`null`, "bad_item", 400},
		{`{` + k + `3,"body":{"a":1,"a":1}}`, "duplicate_key", 400},
		{"{" + k + "3,\"body\":\"\xff\"}", "invalid_utf8", 400},
		{`{` + k + `3,"body":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`, "too_deep", 400},
		{`{` + k + `3,"body":"` + strings.Repeat("x", 8<<20) + `"}`, "body_too_large", 413},
		{`{` + k + `9223372036854775807,"body":"last"}`, "", 201},
	}
	var array, lines []string
	for _, it := range items {
		array = append(array, it.item)
		lines = append(lines, it.item)
	}
	for name, b := range map[string][3]string{
		"array": {"[" + strings.Join(array, ",") + "]", "application/json"},
		"lines": {strings.Join(lines, "\n"), "application/x-ndjson"},
		"gzip":  {string(zip("[" + strings.Join(array, ",") + "]")), "application/json", "gzip"},
	} {
		a := w.do("POST", "/v1/"+w.ds+"/cells", []byte(b[0]), "Content-Type", b[1], "Content-Encoding", b[2])
		var got struct {
			Results []struct {
				Status int
				Code   string
			}
		}
		if err := json.Unmarshal(a.body, &got); err != nil || a.status != 200 || len(got.Results) != len(items) {
			t.Fatalf("%s: %d %.500s", name, a.status, a.body)
		}
		for i, r := range got.Results {
			want := items[i].status
			if want == 201 && r.Status == 200 {
				want = 200 // the batch was sent before
			}
			if r.Status != want || r.Code != items[i].code {
				t.Errorf("%s: item %d (%.80s): %+v, want %d %s", name, i, items[i].item, r, want, items[i].code)
			}
		}
	}
	if n := w.cells(); n != 3 {
		t.Errorf("%d cells are stored, want 3", n)
	}
}

// A client that sends all before it reads gets its 413, and the same
// connection serves its next request.
func TestTooLargeKeepsTheConnection(t *testing.T) {
	w := newWorker(t, 1, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	must(t, err)
	defer c.Close()
	r := bufio.NewReader(c)
	for i, want := range []int{413, 413, 201} {
		body := `"` + strings.Repeat("x", 9<<20) + `"`
		length := fmt.Sprintf("Content-Length: %d", len(body))
		if i == 1 {
			length = "Transfer-Encoding: chunked"
			body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		}
		if want == 201 {
			body, length = `1`, "Content-Length: 1"
		}
		_, err = fmt.Fprintf(c, "PUT /v1/%s/cells/%s/BASE/1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n\r\n%s", w.ds, uuid.NewString(), length, body)
		must(t, err)
		resp, err := http.ReadResponse(r, nil)
		must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != want || resp.Close {
			t.Fatalf("request %d: %d, close %v, want %d", i, resp.StatusCode, resp.Close, want)
		}
	}
}

// Legal extremes come back as they went in: the same value, keys in order.
func TestLegalExtremes(t *testing.T) {
	w := newWorker(t, 4, nil)
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	deepObject := strings.Repeat(`{"a":`, 999) + `{}` + strings.Repeat("}", 999)
	big := `"` + strings.Repeat("0123456789abcdef", (8<<20)/16-1) + `01234567890123"`
	if len(big) != 8<<20 {
		t.Fatal(len(big))
	}
	for name, v := range map[string][2]string{
		"1e400": {`1e400`}, "minus zero": {`-0`}, "30 digits": {`123456789012345678901234567890`}, "30 decimals": {`0.123456789012345678901234567890`},
		"huge exponent": {`1e999999999`}, "tiny": {`-1.5e-999999999`}, "uint64": {`18446744073709551615`}, "int64": {`-9223372036854775808`}, "past int64": {`-9223372036854775809`},
		"float": {`0.1`}, "trailing zeros": {`1.10`}, "empty key": {`{"":1,"a":{"":{}}}`}, "nul": {`"\u0000"`}, "nul key": {`{"\u0000":"\u0000\u001f"}`},
		"deep": {deep}, "deep objects": {deepObject}, "8 MiB": {big}, "null": {`null`}, "true": {`true`}, "empty string": {`""`}, "empty array": {`[]`},
		"key order": {`{"z":1,"a":2,"m":{"y":1,"b":2},"A":3}`}, "space": {" {\n\"a\" :\t1 } \r\n", `{"a":1}`}, "escapes": {`"\/\b\f\n\r\t\"\\"`, `"/\b\f\n\r\t\"\\"`},
		"emoji": {`"🚕\ud83d\ude95"`, `"🚕🚕"`}, "html": {`"<script>&</script>\u2028"`, "\"<script>&</script>\u2028\""}, "escaped ascii": {`"\u0041"`, `"A"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/v1/" + w.ds + "/cells/" + uuid.NewString() + "/BASE/-9223372036854775808"
			if a := w.do("PUT", path, []byte(v[0]), "Content-Type", "application/json; charset=UTF-8"); a.status != 201 {
				t.Fatalf("%d %.200s", a.status, a.body)
			}
			a := w.do("GET", path, nil)
			want := v[1]
			if want == "" {
				want = v[0]
			}
			if a.status != 200 || !sameText(string(a.body), want) {
				t.Errorf("%d %.200s, want %.200s", a.status, a.body, want)
			}
			if a = w.do("PUT", path, []byte(v[0])); a.status != 200 {
				t.Errorf("put again: %d %.200s", a.status, a.body)
			}
			if a = w.do("PUT", path, a.body); a.status != 409 {
				t.Errorf("put of another body: %d %.200s", a.status, a.body)
			}
		})
	}
}

// sameText allows a number's text to change to an equal number's.
func sameText(got, want string) bool {
	if got == want {
		return true
	}
	equal := map[string][]string{`-0`: {`0`, `-0.0`}, `1e400`: {`1E400`, `1e+400`}, `1.10`: {`1.1`}}
	for _, e := range equal[want] {
		if got == e {
			return true
		}
	}
	return false
}
