package table

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/indexdef"
)

// The values that fields take here; null where the text is empty.
var pools = []struct {
	field indexdef.Field
	texts []string
}{
	{indexdef.Field{Name: "zone", Type: indexdef.String}, []string{"a", "A", "a ", "", "é", "e\u0301", "' OR 1=1 -- ", "\\", "\x00", "%"}},
	{indexdef.Field{Name: "s", Type: indexdef.String}, []string{"a", "A", "a ", " a", "ä", "b", "\"; DROP TABLE entity; --", "null"}},
	{indexdef.Field{Name: "n", Type: indexdef.Int64}, []string{"-9223372036854775808", "-1", "0", "1", "9223372036854775807"}},
	{indexdef.Field{Name: "d", Type: indexdef.Decimal}, []string{"-12.5", "0", "0.0000000001", "12.49", "12.5", "9999999999999999999999999999.9999999999"}},
	{indexdef.Field{Name: "f", Type: indexdef.Float64}, []string{"-1.7976931348623157e+308", "-0.1", "0", "5e-324", "0.1", "0.30000000000000004", "1e+21", "123456789.12345678"}},
	{indexdef.Field{Name: "b", Type: indexdef.Bool}, []string{"true", "false"}},
	{indexdef.Field{Name: "t", Type: indexdef.DateTime}, []string{"1000-01-01T00:00:00.000000Z", "2019-03-23T20:21:09.000001Z", "2019-03-23T20:21:09.000002Z", "9999-12-31T23:59:59.999999Z"}},
	{indexdef.Field{Name: "u", Type: indexdef.UUID}, []string{"00000000-0000-0000-0000-000000000000", "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77", "ffffffff-ffff-ffff-ffff-ffffffffffff"}},
}

func jsonOf(typ indexdef.Type, text string) string {
	switch typ {
	case indexdef.Int64, indexdef.Decimal, indexdef.Float64, indexdef.Bool:
		return text
	}
	b, _ := json.Marshal(text)
	return string(b)
}

// before is the order that queries promise, stated once more.
func before(typ indexdef.Type, a, b string) bool {
	switch typ {
	case indexdef.Int64, indexdef.Decimal, indexdef.Float64:
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		return x.Cmp(y) < 0
	}
	return a < b // bytes; false before true; datetimes in one form
}

// Every operator on every type, against a loop over the same rows.
func TestSelectAgainstALoop(t *testing.T) {
	w := newWorld(t, shards, 1)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	var fields []indexdef.Field
	for _, p := range pools {
		fields = append(fields, p.field)
	}
	ix := mustIndex(t, "filters", indexdef.Column{Key: "BASE", Fields: fields})
	tables := newTables(t, w)
	if _, err := tables.Ensure(t.Context(), ix); err != nil {
		t.Fatal(err)
	}
	type want struct {
		row    uuid.UUID
		values []*string
	}
	var rows []want
	var cells []cellog.Cell
	for i := range 400 {
		r := want{row: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))}
		var members []string
		for f, p := range pools {
			if f > 0 && rnd.IntN(8) == 0 {
				r.values = append(r.values, nil)
				continue
			}
			v := p.texts[rnd.IntN(len(p.texts))]
			r.values = append(r.values, &v)
			members = append(members, fmt.Sprintf("%q:%s", p.field.Name, jsonOf(p.field.Type, v)))
		}
		rows = append(rows, r)
		cells = append(cells, cell(r.row, "BASE", 1, cellog.AddedID(i+1), "{"+strings.Join(members, ",")+"}"))
	}
	if err := apply(tables, ix, cells); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(rows, func(a, b want) int { return strings.Compare(string(a.row[:]), string(b.row[:])) })
	querier := indexer.NewQuerier(tables, []*indexer.Index{ix})
	ops := []string{"", ".ne", ".lt", ".lte", ".gt", ".gte", ".in"}
	found := 0
	for range 500 {
		zone := pools[0].texts[rnd.IntN(len(pools[0].texts))]
		params := url.Values{"zone": {zone}}
		type cond struct {
			field  int
			op     string
			values []string
		}
		var conds []cond
		for range rnd.IntN(3) {
			f := 1 + rnd.IntN(len(pools)-1)
			c := cond{f, ops[rnd.IntN(len(ops))], []string{pools[f].texts[rnd.IntN(len(pools[f].texts))]}}
			name := pools[f].field.Name + c.op
			if params.Has(name) {
				continue
			}
			if c.op == ".in" {
				c.values = append(c.values, pools[f].texts[rnd.IntN(len(pools[f].texts))])
				params[name] = c.values
			} else {
				params.Set(name, c.values[0])
			}
			conds = append(conds, c)
		}
		holds := func(r want) bool {
			if *r.values[0] != zone {
				return false
			}
			for _, c := range conds {
				v, typ := r.values[c.field], pools[c.field].field.Type
				if v == nil {
					return false
				}
				x := c.values[0]
				ok := false
				switch c.op {
				case "":
					ok = *v == x
				case ".ne":
					ok = *v != x
				case ".lt":
					ok = before(typ, *v, x)
				case ".lte":
					ok = !before(typ, x, *v)
				case ".gt":
					ok = before(typ, x, *v)
				case ".gte":
					ok = !before(typ, *v, x)
				case ".in":
					ok = slices.Contains(c.values, *v)
				}
				if !ok {
					return false
				}
			}
			return true
		}
		limit := 1 + rnd.IntN(40)
		params.Set("limit", fmt.Sprint(limit))
		var got []want
		for pages := 0; ; pages++ {
			a, err := querier.Query(t.Context(), "trips", "filters", params)
			if err != nil {
				t.Fatalf("%v: %v", params, err)
			}
			answer := a.(*indexer.Answer)
			for _, e := range answer.Entries {
				r := want{row: e.Row}
				for _, v := range e.Values {
					if v.Null() {
						r.values = append(r.values, nil)
						continue
					}
					text := v.Text()
					r.values = append(r.values, &text)
				}
				got = append(got, r)
			}
			if answer.Next == "" {
				break
			}
			if len(answer.Entries) != limit {
				t.Fatalf("%v: a page of %d with a next one", params, len(answer.Entries))
			}
			params.Set("cursor", answer.Next)
		}
		var expected []want
		for _, r := range rows {
			if holds(r) {
				expected = append(expected, r)
			}
		}
		if fmt.Sprint(texts(len(got), func(i int) []*string { return got[i].values })) != fmt.Sprint(texts(len(expected), func(i int) []*string { return expected[i].values })) {
			t.Fatalf("%v:\n%d rows, want %d", params, len(got), len(expected))
		}
		found += len(got)
	}
	if found < 500 {
		t.Errorf("only %d rows were found in all", found)
	}
}

func texts(n int, row func(int) []*string) []string {
	var out []string
	for i := range n {
		for _, v := range row(i) {
			if v == nil {
				out = append(out, "NULL")
			} else {
				out = append(out, fmt.Sprintf("%q", *v))
			}
		}
		out = append(out, "\n")
	}
	return out
}

// A query of an index that no indexer has made yet says so.
func TestSelectBeforeTheTablesAreMade(t *testing.T) {
	w := newWorld(t, shards, 1)
	ix := mustIndex(t, "later", indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "a", Type: indexdef.Int64}}})
	q := indexer.NewQuerier(newTables(t, w), []*indexer.Index{ix})
	_, err := q.Query(t.Context(), "trips", "later", url.Values{"a": {"1"}})
	var refused *indexer.Error
	if !errors.As(err, &refused) || refused.Code() != indexer.CodeIndexNotMade || refused.Status() != 503 {
		t.Errorf("%v", err)
	}
	other := mustIndex(t, "later", indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "a", Type: indexdef.Int64}, {Name: "b", Type: indexdef.Bool}}})
	tables := newTables(t, w)
	if building, err := tables.Ensure(t.Context(), ix); err != nil || !building {
		t.Errorf("%v, %v", building, err)
	}
	a, err := q.Query(t.Context(), "trips", "later", url.Values{"a": {"1"}})
	if err != nil || !a.(*indexer.Answer).Building {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := tables.Ensure(t.Context(), other); !errors.Is(err, indexer.ErrDefinition) {
		t.Errorf("another definition: %v", err)
	}
	if err := tables.MarkReady(t.Context(), ix); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() error {
		a, err := q.Query(t.Context(), "trips", "later", url.Values{"a": {"1"}})
		if err == nil && a.(*indexer.Answer).Building {
			err = errors.New("still building")
		}
		return err
	})
	if building, err := tables.Ensure(t.Context(), ix); err != nil || building {
		t.Errorf("%v, %v", building, err)
	}
}

// awayPlaces have nodes that cannot be reached.
type awayPlaces struct {
	*world
	gone *sql.DB
	away map[cellog.ReadFrom]bool
}

func (a *awayPlaces) ReadDB(ctx context.Context, ds string, s cellog.ShardID, from cellog.ReadFrom) (*sql.DB, cellog.Origin, error) {
	db, o, err := a.world.ReadDB(ctx, ds, s, from)
	if a.away[from] {
		db = a.gone
	}
	return db, o, err
}

// A read fails over to the other kind of node, and says so.
func TestSelectFailsOver(t *testing.T) {
	w := newWorld(t, shards, 1)
	ix := mustIndex(t, "over", indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "a", Type: indexdef.Int64}}})
	if _, err := newTables(t, w).Ensure(t.Context(), ix); err != nil {
		t.Fatal(err)
	}
	gone, err := mysqlconn.Open(mysqlconn.Config{Addr: "127.0.0.1:1", User: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	for _, c := range []struct {
		read         cellog.ReadFrom
		master, away bool // which is away: the master, the minion
		want         string
	}{
		{cellog.Master, false, false, "master false"},
		{cellog.Minion, false, false, "minion false"},
		{cellog.Master, true, false, "minion true"},
		{cellog.Minion, false, true, "master false"},
		{cellog.Master, true, true, indexer.CodeUnavailable},
		{cellog.Minion, true, true, indexer.CodeUnavailable},
	} {
		tables, err := New(Config{Places: &awayPlaces{w, gone, map[cellog.ReadFrom]bool{cellog.Master: c.master, cellog.Minion: c.away}}})
		if err != nil {
			t.Fatal(err)
		}
		q := indexer.NewQuerier(tables, []*indexer.Index{ix})
		a, err := q.Query(t.Context(), "trips", "over", url.Values{"a": {"1"}, "read": {c.read.String()}})
		var got string
		var refused *indexer.Error
		switch {
		case err == nil:
			o := a.(*indexer.Answer).Origin
			got = fmt.Sprint(o.From, " ", o.Stale)
		case errors.As(err, &refused):
			got = refused.Code()
		default:
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v: %s, want %s", c, got, c.want)
		}
	}
}
