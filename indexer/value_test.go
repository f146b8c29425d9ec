package indexer

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/indexdef"
)

func TestParse(t *testing.T) {
	long := strings.Repeat("a", MaxString)
	for _, c := range []struct {
		typ  Type
		in   string
		want string // canonical text; "!" for a mismatch
	}{
		{UUID, "0C2F6A4E-6A3C-4D7F-9F1E-0D6B1F3A5C77", "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77"},
		{UUID, "{0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77}", "!"},
		{UUID, "0c2f6a4e6a3c4d7f9f1e0d6b1f3a5c77", "!"},
		{UUID, "", "!"},
		{String, "", ""},
		{String, " a ", " a "},
		{String, long, long},
		{String, long + "a", "!"},
		{String, "\xff", "!"},
		{Int64, "9223372036854775807", "9223372036854775807"},
		{Int64, "-9223372036854775808", "-9223372036854775808"},
		{Int64, "9223372036854775808", "!"},
		{Int64, "1.0", "1"},
		{Int64, "10e-1", "1"},
		{Int64, "1e3", "1000"},
		{Int64, "-0", "0"},
		{Int64, "0.5", "!"},
		{Int64, "1e999999999999", "!"},
		{Int64, "+1", "!"},
		{Int64, "01", "!"},
		{Int64, "0x1", "!"},
		{Int64, "", "!"},
		{Decimal, "12.50", "12.5"},
		{Decimal, "-0.0000000001", "-0.0000000001"},
		{Decimal, "0.00000000001", "!"},
		{Decimal, "1234567890123456789012345678.0123456789", "1234567890123456789012345678.0123456789"},
		{Decimal, "12345678901234567890123456789", "!"},
		{Decimal, "1e27", "1000000000000000000000000000"},
		{Decimal, "1e28", "!"},
		{Decimal, "1e400", "!"},
		{Decimal, "0e999999999", "0"},
		{Decimal, "-0", "0"},
		{Decimal, "1.", "!"},
		{Decimal, ".5", "!"},
		{Decimal, "1e", "!"},
		{Decimal, " 1", "!"},
		{Decimal, "NaN", "!"},
		{Float64, "0.1", "0.1"},
		{Float64, "-0.0", "0"},
		{Float64, "1e400", "!"},
		{Float64, "1e-400", "0"},
		{Float64, "Infinity", "!"},
		{Float64, "0x1p-2", "!"},
		{Float64, "1_000", "!"},
		{Bool, "true", "true"},
		{Bool, "false", "false"},
		{Bool, "1", "!"},
		{Bool, "TRUE", "!"},
		{DateTime, "2019-03-23 20:21:09", "2019-03-23T20:21:09.000000Z"},
		{DateTime, "2019-03-23T20:21:09", "2019-03-23T20:21:09.000000Z"},
		{DateTime, "2019-03-23T20:21:09Z", "2019-03-23T20:21:09.000000Z"},
		{DateTime, "2019-03-23t20:21:09z", "2019-03-23T20:21:09.000000Z"},
		{DateTime, "2019-03-23T20:21:09+05:45", "2019-03-23T14:36:09.000000Z"},
		{DateTime, "2019-12-31T23:59:59.999999999-00:01", "2020-01-01T00:00:59.999999Z"},
		{DateTime, "2019-03-23 20:21:09.5", "2019-03-23T20:21:09.500000Z"},
		{DateTime, "1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"},
		{DateTime, "1000-01-01T00:00:00Z", "1000-01-01T00:00:00.000000Z"},
		{DateTime, "0999-12-31T23:59:59Z", "!"},
		{DateTime, "1000-01-01T00:00:00+00:01", "!"},
		{DateTime, "9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999Z"},
		{DateTime, "9999-12-31T23:59:59-00:01", "!"},
		{DateTime, "2019-02-29T00:00:00Z", "!"},
		{DateTime, "2019-03-23T20:21:60Z", "!"},
		{DateTime, "2019-03-23T20:21:09,5Z", "!"},
		{DateTime, "2019-03-23T20:21:09+24:00", "!"},
		{DateTime, "2019-03-23T20:21:09+23:59", "2019-03-22T20:22:09.000000Z"},
		{DateTime, "2019-03-23T20:21:09+00:60", "!"},
		{DateTime, "2019-03-23", "!"},
		{DateTime, "2019-03-23T20:21", "!"},
		{DateTime, "", "!"},
	} {
		v, err := Parse(c.typ, c.in)
		got := v.Text()
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("%s %.60q: %.60q, want %.60q", c.typ, c.in, got, c.want)
			continue
		}
		if err != nil {
			continue
		}
		if again, err := Parse(c.typ, v.Text()); err != nil || again != v {
			t.Errorf("%s %.60q: canonical text is read as %#v, %v", c.typ, c.in, again, err)
		}
		if j := v.AppendJSON(nil); !json.Valid(j) {
			t.Errorf("%s %.60q: JSON %.60s", c.typ, c.in, j)
		}
	}
}

// The shard of a value is where entries were stored: these never change.
func TestShardVectors(t *testing.T) {
	for _, c := range []struct {
		typ   Type
		text  string
		hash  int32
		shard cellog.ShardID // of 4096
	}{
		{UUID, "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77", 1469630343, 1927},
		{String, "", 275646681, 2265},
		{String, "Upper West Side South", 156998856, 3272},
		{String, "Zürich", -1551140815, 2097},
		{Int64, "-42", -771745009, 2831},
		{Decimal, "12.5", 1664113215, 2623},
		{Float64, "1e+21", 1055078124, 1772},
		{Float64, "0.1", 2111986578, 2962},
		{Bool, "true", -1452041902, 2386},
		{DateTime, "2019-03-23T20:21:09.000000Z", 298078163, 4051},
	} {
		v, err := Parse(c.typ, c.text)
		if err != nil || v.Text() != c.text {
			t.Errorf("%s %q: %v, %q", c.typ, c.text, err, v.Text())
		}
		if h, s := cellog.Murmur2([]byte(c.text)), v.Shard(4096); h != c.hash || s != c.shard {
			t.Errorf("{%s, %q, %d, %d},", c.typ, c.text, h, s)
		}
	}
	id := uuid.MustParse("0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77")
	if got, want := UUIDValue(id).Shard(4096), cellog.ShardOf(id, 4096); got != want {
		t.Errorf("a uuid's entries are in shard %d, its row in %d", got, want)
	}
}

// Equal numbers are one value, however they are spelled: a body may be stored
// with any spelling.
func TestNumbersAreTheirValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number")
		n, ok := cutNumber(text)
		exact, ok2 := new(big.Rat).SetString(text)
		if !ok || !ok2 {
			t.Fatalf("%q: %v %v", text, ok, ok2)
		}
		plain, fits := n.plain(200, 200)
		if !fits {
			t.Fatalf("%q does not fit", text)
		}
		if got, _ := new(big.Rat).SetString(plain); got.Cmp(exact) != 0 {
			t.Fatalf("%q is %s", text, plain)
		}
		if other, _ := cutNumber(plain); other != n {
			t.Fatalf("%q and %q differ", text, plain)
		}
		v, err := Parse(Decimal, text)
		scaled := new(big.Rat).Mul(exact, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(10), nil)))
		limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil)
		want := scaled.IsInt() && scaled.Num().CmpAbs(limit) < 0
		if (err == nil) != want {
			t.Fatalf("%q as decimal: %q, %v; fits: %v", text, v.Text(), err, want)
		}
	})
}

func mustIndex(t testing.TB, columns ...indexdef.Column) *Index {
	t.Helper()
	ix, err := NewIndex(indexdef.Definition{Datastore: "trips", Table: "test_index", Columns: columns})
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

func TestExtract(t *testing.T) {
	ix := mustIndex(t,
		indexdef.Column{Key: "STATUS", Fields: []indexdef.Field{{Name: "other", Type: indexdef.String}}},
		indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "s", Type: indexdef.String}, {Name: "n", Type: indexdef.Int64},
			{Name: "d", Type: indexdef.Decimal}, {Name: "f", Type: indexdef.Float64}, {Name: "b", Type: indexdef.Bool}, {Name: "t", Type: indexdef.DateTime}}})
	for _, c := range []struct {
		body       string
		want       string
		mismatches int
	}{
		{`{"s":"x","n":1,"d":2.50,"f":0.5,"b":true,"t":"2019-03-23 20:21:09"}`, `"x" 1 2.5 0.5 true "2019-03-23T20:21:09.000000Z"`, 0},
		{` { "n" : 1.0 , "zz":{"s":"no"}, "arr":[{"s":"no"}] } `, `null 1 null null null null`, 0},
		{`{}`, `null null null null null null`, 0},
		{`{"s":null,"n":null,"d":null,"f":null,"b":null,"t":null}`, `null null null null null null`, 0},
		{`{"s":1,"n":"1","d":true,"f":"0.5","b":"true","t":0}`, `null null null null null null`, 6},
		{`{"s":{},"n":[],"d":{},"f":{},"b":[1],"t":{"t":1}}`, `null null null null null null`, 6},
		{`{"d":"12.50","n":1.5}`, `null null 12.5 null null null`, 1},
		{`{"\u0073":"a\u0000\"\\é\ud83d\ude00"}`, `"a\u0000\"\\é😀" null null null null null`, 0},
		{`{"S":"case matters"}`, `null null null null null null`, 0},
		{`[]`, `null null null null null null`, 6},
		{`"s"`, `null null null null null null`, 6},
		{`null`, `null null null null null null`, 6},
		{``, `null null null null null null`, 6},
		{`{"s":"x","n":1`, `null null null null null null`, 6},
		{`{"s":"` + strings.Repeat("x", MaxString+1) + `"}`, `null null null null null null`, 1},
		{`{"n":1e999999999,"d":1e-999999999,"f":1e400}`, `null null null null null null`, 3},
	} {
		out := make([]Value, 7)
		out[0] = StringValue("kept")
		got := ix.Extract(1, []byte(c.body), out)
		var texts []string
		for _, v := range out[1:] {
			texts = append(texts, string(v.AppendJSON(nil)))
		}
		if s := strings.Join(texts, " "); s != c.want || got != c.mismatches || out[0].Text() != "kept" {
			t.Errorf("%.80s: %s, %d; want %s, %d", c.body, s, got, c.want, c.mismatches)
		}
	}
}

func FuzzExtract(f *testing.F) {
	f.Add([]byte(`{"s":"x","n":1,"d":2.50,"f":0.5,"b":true,"t":"2019-03-23 20:21:09"}`))
	f.Add([]byte(`{"\u0073":[[[[`))
	f.Add([]byte(`{"d":1e999999999}`))
	ix := mustIndex(f, indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "s", Type: indexdef.String}, {Name: "n", Type: indexdef.Int64},
		{Name: "d", Type: indexdef.Decimal}, {Name: "f", Type: indexdef.Float64}, {Name: "b", Type: indexdef.Bool}, {Name: "t", Type: indexdef.DateTime}}})
	f.Fuzz(func(t *testing.T, body []byte) {
		out := make([]Value, 6)
		ix.Extract(0, body, out)
		for i, v := range out {
			if v.Null() {
				continue
			}
			if again, err := Parse(ix.fields[i].Type, v.Text()); err != nil || again != v {
				t.Errorf("%#v is read back as %#v, %v", v, again, err)
			}
			if j := v.AppendJSON(nil); !json.Valid(j) {
				t.Errorf("JSON %q", j)
			}
		}
	})
}

// Whatever the order and the grouping, joining the same cells ends in the same
// state; versions grow with every change and only then.
func TestJoinIsALattice(t *testing.T) {
	ix := mustIndex(t,
		indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "d", Type: indexdef.String}}},
		indexdef.Column{Key: "STATUS", Fields: []indexdef.Field{{Name: "s", Type: indexdef.Int64}}})
	rapid.Check(t, func(t *rapid.T) {
		refs := rapid.SliceOfNDistinct(rapid.Int64(), 1, 8, rapid.ID).Draw(t, "refs")
		var cells []State
		for i, ref := range refs {
			s := ix.NewState()
			column := rapid.IntRange(0, 1).Draw(t, "column")
			s.Columns[column] = Newest{Set: true, Ref: cellog.RefKey(ref), Added: cellog.AddedID(i + 1)}
			if column == 0 {
				s.Fields[0] = rapid.SampledFrom([]Value{{}, StringValue("a"), StringValue("b")}).Draw(t, "d")
			} else {
				s.Fields[1] = Int64Value(ref)
			}
			cells = append(cells, s)
		}
		run := func(order []State) State {
			s := ix.NewState()
			for _, c := range order {
				before, removals := s.Version(), len(s.Removals)
				was := s.Fields[0]
				changed := ix.Join(&s, c)
				after := s.Version()
				if changed != (string(after[:]) > string(before[:])) || !changed && after != before {
					t.Fatalf("changed %v, version %x to %x", changed, before, after)
				}
				if !changed && (len(s.Removals) != removals || s.Fields[0] != was) {
					t.Fatalf("a join that changed nothing did")
				}
				for _, r := range s.Removals {
					if r == s.Fields[0] || r.Null() {
						t.Fatalf("removal of %#v, the value is %#v", r, s.Fields[0])
					}
				}
				if now := s.Fields[0]; now != was && !was.Null() && !containsValue(s.Removals, was) {
					t.Fatalf("%#v is left and not removed", was)
				}
			}
			s.Removals = nil
			return s
		}
		want := fmt.Sprintf("%#v", run(cells))
		order := rapid.Permutation(append(append([]State(nil), cells...), cells...)).Draw(t, "order")
		if got := fmt.Sprintf("%#v", run(order)); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func containsValue(vs []Value, v Value) bool {
	for _, x := range vs {
		if x == v {
			return true
		}
	}
	return false
}

func TestVersionVectors(t *testing.T) {
	version := func(refs ...cellog.RefKey) string {
		var s State
		for _, r := range refs {
			s.Columns = append(s.Columns, Newest{Set: true, Ref: r})
		}
		return fmt.Sprintf("%x", s.Version())
	}
	for want, got := range map[string]string{
		"000000000000000000": version(),
		"000000000000000001": version(-1 << 63),
		"008000000000000001": version(0),
		"010000000000000000": version(1<<63 - 1),
		"010000000000000002": version(0, 0),
		"020000000000000000": version(1<<63-1, 1<<63-1),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
