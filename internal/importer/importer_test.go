package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rowA = "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77"

func all(t *testing.T, s Source, err error) (lines []string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for {
		line, err := next(s)
		if line != "" {
			lines = append(lines, line)
		}
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// next describes the next row; it returns an error when there are no more.
func next(s Source) (string, error) {
	p, line, err := s.Next()
	var bad *RowError
	switch {
	case errors.Is(err, io.EOF):
		return "", err
	case errors.As(err, &bad):
		return "bad " + bad.Error(), nil
	case err != nil:
		return "failed " + err.Error(), err
	case len(p.Body) > 1000:
		return fmt.Sprintf("%d %s %d bytes", line, p.Key, len(p.Body)), nil
	}
	return fmt.Sprintf("%d %s %s", line, p.Key, p.Body), nil
}

func TestCSV(t *testing.T) {
	file := "\xef\xbb\xbfid,n,fare,note,paid,raw,secret\n" +
		rowA + ",7,12.50,\"a \"\"b\"\"\nc\",true,\"[1,2]\",x\n" +
		rowA + ",,,,,,\n" +
		rowA + ",x,1,,,,\n" +
		"nobody,1,1,,,,\n" +
		rowA + ",1\n" +
		rowA + ",1,007,,,,\n" +
		rowA + ",-9223372036854775808,1e400,<é>,false,{},\n"
	s, err := NewCSV(strings.NewReader(file), Mapping{Column: "BASE", RowKey: "id", RefKey: LineField,
		Types: map[string]string{"n": "int64", "fare": "decimal", "paid": "bool", "raw": "json", "secret": "skip", "id": "skip"}})
	want := []string{
		`2 ` + rowA + `/BASE/2 {"n":7,"fare":12.50,"note":"a \"b\"\nc","paid":true,"raw":[1,2]}`,
		`4 ` + rowA + `/BASE/4 {"n":null,"fare":null,"note":"","paid":null,"raw":null}`,
		`bad line 5: field "n": "x" is not an int64`,
		`bad line 6: field "id": row_key "nobody": want a UUID of 36 characters, such as ` + rowA,
		`bad line 7: 2 fields, but the header names 7`,
		`bad line 8: field "fare": "007" is not a decimal number`,
		`9 ` + rowA + `/BASE/9 {"n":-9223372036854775808,"fare":1e400,"note":"<é>","paid":false,"raw":{}}`,
	}
	if diff := cmp.Diff(want, all(t, s, err)); diff != "" {
		t.Error(diff)
	}
}

func TestJSONL(t *testing.T) {
	file := `{"id":"` + rowA + `","v":3,"x":1.0}` + "\n\n" + `[1]` + "\n" + `{"id":1}` + "\n" + `{"v":1}`
	s, err := NewJSONL(strings.NewReader(file), Mapping{Column: "BASE", RowKey: "id", RefKey: "v"})
	got := all(t, s, err)
	if len(got) != 4 || got[0] != "1 "+rowA+`/BASE/3 {"id":"`+rowA+`","v":3,"x":1.0}` ||
		got[1] != "bad line 3: it is an array: want a JSON object" || !strings.HasPrefix(got[2], `bad line 4: field "id": row_key`) || got[3] != `bad line 5: field "id": it is not there` {
		t.Errorf("%q", got)
	}
}

// A literal: another spelling of the name would make other rows of the same
// file, and an import would no longer be resumable.
func TestUUID5(t *testing.T) {
	s, err := NewCSV(strings.NewReader("a,b\n1,2\n"), Mapping{Column: "BASE", UUID5: []string{"*"}})
	want := uuid.NewSHA1(uuid.NameSpaceURL, []byte("1\x1f2")).String()
	if got := all(t, s, err); len(got) != 1 || !strings.Contains(got[0], want) || want != "198c014e-47f5-5710-9f22-fbc64cf7c321" {
		t.Errorf("%q, want %s", got, want)
	}
}

func TestBadMappings(t *testing.T) {
	for _, c := range []struct {
		m    Mapping
		want string
	}{
		{Mapping{Column: "9", RowKey: "a"}, "column"},
		{Mapping{Column: "B"}, "row key"},
		{Mapping{Column: "B", RowKey: "a", UUID5: []string{"b"}}, "row key"},
		{Mapping{Column: "B", RowKey: "c"}, `no field "c"; there are "a", "b"`},
		{Mapping{Column: "B", UUID5: []string{"a", "c"}}, `no field "c"`},
		{Mapping{Column: "B", RowKey: "a", RefKey: "1.5"}, `ref key: there is no field "1.5"`},
		{Mapping{Column: "B", RowKey: "a", Types: map[string]string{"a": "float"}}, `"float": want string`},
		{Mapping{Column: "B", RowKey: "a", Types: map[string]string{"c": "string"}}, `no field "c"`},
	} {
		if _, err := NewCSV(strings.NewReader("a,b\n"), c.m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.m, err, c.want)
		}
	}
	if _, err := NewCSV(strings.NewReader("a,a\n"), Mapping{Column: "B", RowKey: "a"}); err == nil {
		t.Error("a field twice")
	}
	if _, err := NewCSV(strings.NewReader(""), Mapping{Column: "B", RowKey: "a"}); err == nil {
		t.Error("no header")
	}
	if _, err := NewJSONL(strings.NewReader(""), Mapping{Column: "B", UUID5: []string{"*"}}); err == nil {
		t.Error("* without a header")
	}
}

func TestRun(t *testing.T) {
	var file strings.Builder
	file.WriteString("n\n")
	for i := range 2500 {
		fmt.Fprintln(&file, i)
	}
	var mu sync.Mutex
	seen := map[string]bool{}
	put := func(_ context.Context, ds string, puts []cellog.Put) ([]Result, error) {
		mu.Lock()
		defer mu.Unlock()
		if ds != "trips" || len(puts) > 100 {
			t.Errorf("%s: %d puts", ds, len(puts))
		}
		out := make([]Result, len(puts))
		for i, p := range puts {
			switch body := string(p.Body); {
			case body == `{"n":5}`:
				out[i] = Result{Outcome: cellog.Conflict, Err: errors.New("409")}
			case body == `{"n":7}`:
				out[i] = Result{Err: errors.New("refused")}
			case seen[p.Key.String()]:
				out[i] = Result{Outcome: cellog.Same}
			default:
				seen[p.Key.String()] = true
				out[i] = Result{Outcome: cellog.Created}
			}
		}
		return out, nil
	}
	m := Mapping{Column: "BASE", UUID5: []string{"n"}, Types: map[string]string{"n": "int64"}}
	reports := map[int]string{}
	cfg := Config{Datastore: "trips", Put: put, BatchCells: 100, Report: func(line int, err error) { reports[line] = err.Error() }}
	for round, want := range []Stats{{Created: 2498, Conflict: 1, Bad: 1}, {Same: 2498, Conflict: 1, Bad: 1}} {
		s, err := NewCSV(strings.NewReader(file.String()), m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Run(t.Context(), s, cfg)
		if err != nil || got != want || got.Done() != 2500 {
			t.Errorf("round %d: %+v, %v; want %+v", round, got, err, want)
		}
		if len(reports) != 2 || !strings.Contains(reports[7], "conflict") || reports[9] != "refused" {
			t.Errorf("reports %v", reports)
		}
	}

	s, err := NewCSV(strings.NewReader("n\nx\ny\nz\n"), m)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxBad = 2
	if got, err := Run(t.Context(), s, cfg); !errors.Is(err, ErrTooManyBad) || got.Bad != 3 {
		t.Errorf("%+v, %v", got, err)
	}

	s, err = NewCSV(strings.NewReader(file.String()), m)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Put = func(context.Context, string, []cellog.Put) ([]Result, error) {
		return nil, errors.New("all workers are down")
	}
	if _, err := Run(t.Context(), s, cfg); err == nil || !strings.Contains(err.Error(), "down") {
		t.Error(err)
	}
}
