package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/indexdef"
)

// lookups are Tables that answer every Select with the same entries.
type lookups struct {
	Tables
	got     Select
	entries []Entry
}

func (l *lookups) Select(_ context.Context, s Select) (Selected, error) {
	l.got = s
	return Selected{Entries: l.entries[:min(len(l.entries), s.Limit)], Origin: cellog.Origin{Node: "n1"}}, nil
}

func queryIndex(t testing.TB) *Index {
	return mustIndex(t,
		indexdef.Column{Key: "BASE", Fields: []indexdef.Field{{Name: "zone", Type: indexdef.String}, {Name: "fare", Type: indexdef.Decimal},
			{Name: "n", Type: indexdef.Int64}, {Name: "at", Type: indexdef.DateTime}, {Name: "ok", Type: indexdef.Bool},
			{Name: "driver", Type: indexdef.UUID}, {Name: "f", Type: indexdef.Float64}}})
}

const otherCursor = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func TestHostileQueries(t *testing.T) {
	ix := queryIndex(t)
	l := &lookups{}
	q := NewQuerier(l, []*Index{ix})
	huge := strings.Repeat("9", 10<<20)
	for _, c := range []struct{ index, query, code string }{
		{"nope", "zone=a", CodeUnknownIndex},
		{"test_index`; DROP TABLE entity", "zone=a", CodeUnknownIndex},
		{"", "zone=a", CodeUnknownIndex},
		{"test_index", "", CodeMissingShardField},
		{"test_index", "fare=1", CodeMissingShardField},
		{"test_index", "zone.ne=a", CodeMissingShardField},
		{"test_index", "zone.in=a", CodeMissingShardField},
		{"test_index", "zone=a&zone=b", CodeBadFilter},
		{"test_index", "zone=%ff", CodeBadFilter},
		{"test_index", "zone=" + strings.Repeat("a", MaxString+1), CodeBadFilter},
		{"test_index", "zone=a&nope=1", CodeUnknownParameter},
		{"test_index", "zone=a&row_key=1", CodeUnknownParameter},
		{"test_index", "zone=a&version=1", CodeUnknownParameter},
		{"test_index", "zone=a&f_zone=a", CodeUnknownParameter},
		{"test_index", "zone=a&zone%60%3D1+OR+1%3D1--=1", CodeUnknownParameter},
		{"test_index", "zone=a&=1", CodeUnknownParameter},
		{"test_index", "zone=a&.lt=1", CodeUnknownParameter},
		{"test_index", "zone=a&ZONE=a", CodeUnknownParameter},
		{"test_index", "zone=a&fare.like=1", CodeBadFilter},
		{"test_index", "zone=a&fare.=1", CodeBadFilter},
		{"test_index", "zone=a&fare.lt.lt=1", CodeUnknownParameter},
		{"test_index", "zone=a&fare.LT=1", CodeBadFilter},
		{"test_index", "zone=a&fare=1;DROP TABLE x", CodeBadFilter},
		{"test_index", "zone=a&fare='1'", CodeBadFilter},
		{"test_index", "zone=a&fare=", CodeBadFilter},
		{"test_index", "zone=a&fare=1e400", CodeBadFilter},
		{"test_index", "zone=a&fare=null", CodeBadFilter},
		{"test_index", "zone=a&fare.lt=1&fare.lt=2", CodeBadFilter},
		{"test_index", "zone=a&n=1.5", CodeBadFilter},
		{"test_index", "zone=a&n=9223372036854775808", CodeBadFilter},
		{"test_index", "zone=a&n=" + huge, CodeBadFilter},
		{"test_index", "zone=a&f=NaN", CodeBadFilter},
		{"test_index", "zone=a&f=Inf", CodeBadFilter},
		{"test_index", "zone=a&ok=1", CodeBadFilter},
		{"test_index", "zone=a&ok=yes", CodeBadFilter},
		{"test_index", "zone=a&at=yesterday", CodeBadFilter},
		{"test_index", "zone=a&at.gte=2019-03-23T00:00:00 02:00", CodeBadFilter},
		{"test_index", "zone=a&driver=1", CodeBadFilter},
		{"test_index", "zone=a&driver=0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c7' OR 1=1", CodeBadFilter},
		{"test_index", "zone=a&n.in=", CodeBadFilter},
		{"test_index", "zone=a&n.in=1,,2", CodeBadFilter},
		{"test_index", "zone=a&n.in=1,x", CodeBadFilter},
		{"test_index", "zone=a&n.in=" + strings.Repeat("1,", MaxIn) + "1", CodeBadFilter},
		{"test_index", "zone=a&n.in=" + huge, CodeBadFilter},
		{"test_index", "zone=a&select=", CodeBadSelect},
		{"test_index", "zone=a&select=nope", CodeBadSelect},
		{"test_index", "zone=a&select=*", CodeBadSelect},
		{"test_index", "zone=a&select=fare,fare", CodeBadSelect},
		{"test_index", "zone=a&select=fare&select=n", CodeUnknownParameter},
		{"test_index", "zone=a&select=(SELECT body FROM entity)", CodeBadSelect},
		{"test_index", "zone=a&limit=0", CodeBadLimit},
		{"test_index", "zone=a&limit=-1", CodeBadLimit},
		{"test_index", fmt.Sprint("zone=a&limit=", MaxLimit+1), CodeBadLimit},
		{"test_index", "zone=a&limit=1;", CodeBadLimit},
		{"test_index", "zone=a&limit=", CodeBadLimit},
		{"test_index", "zone=a&limit=" + huge, CodeBadLimit},
		{"test_index", "zone=a&cursor=x", CodeBadCursor},
		{"test_index", "zone=a&cursor=" + huge, CodeBadCursor},
		{"test_index", "zone=a&cursor=" + otherCursor, CodeBadCursor},
		{"test_index", "zone=a&cursor=" + otherCursor + "=", CodeBadCursor},
		{"test_index", "zone=a&cursor=%00", CodeBadCursor},
		{"test_index", "zone=a&read=both", CodeBadRead},
		{"test_index", "zone=a&read=master&read=minion", CodeUnknownParameter},
	} {
		name := fmt.Sprintf("%.40s?%.60s", c.index, c.query)
		// As httpapi does: ; is not a separator, and stays in the value.
		params := url.Values{}
		for _, pair := range strings.Split(c.query, "&") {
			k, v, _ := strings.Cut(pair, "=")
			uk, err1 := url.QueryUnescape(k)
			uv, err2 := url.QueryUnescape(v)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if pair != "" {
				params.Add(uk, uv)
			}
		}
		l.got = Select{}
		_, err := q.Query(t.Context(), "trips", c.index, params)
		var refused *Error
		switch {
		case !errors.As(err, &refused):
			t.Errorf("%s: %v, want %s", name, err, c.code)
		case refused.Code() != c.code || refused.Status() < 400 || refused.Status() > 499:
			t.Errorf("%s: %s %d %v, want %s", name, refused.Code(), refused.Status(), err, c.code)
		case len(err.Error()) > 600:
			t.Errorf("%s: the message has %d bytes", name, len(err.Error()))
		case l.got.Index != nil:
			t.Errorf("%s: the tables were asked", name)
		}
	}
}

func TestQueryAnswer(t *testing.T) {
	ix := queryIndex(t)
	l := &lookups{}
	for i := range 3 {
		e := Entry{Row: uuid.UUID{15: byte(i)}, Values: make([]Value, 2)}
		e.Values[0], _ = Parse(Decimal, "12.50")
		if i == 0 {
			e.Values[1], _ = Parse(DateTime, "2019-03-23T20:21:09+01:00")
		}
		l.entries = append(l.entries, e)
	}
	q := NewQuerier(l, []*Index{ix})
	params := url.Values{"zone": {"a,b"}, "fare.gte": {"1.0"}, "n.in": {"1,2,3e0"}, "select": {"fare,at"}, "limit": {"2"}, "read": {"minion"}}
	a, err := q.Query(t.Context(), "trips", "test_index", params)
	if err != nil {
		t.Fatal(err)
	}
	if l.got.Shard != StringValue("a,b") || l.got.Read != cellog.Minion || l.got.Limit != 3 || len(l.got.Filters) != 2 || l.got.After != nil {
		t.Errorf("asked %+v", l.got)
	}
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	next := a.(*Answer).Next
	want := `{"entries":[{"row_key":"00000000-0000-0000-0000-000000000000","fare":12.5,"at":"2019-03-23T19:21:09.000000Z"},` +
		`{"row_key":"00000000-0000-0000-0000-000000000001","fare":12.5,"at":null}],"next":"` + next + `","read_from":"master","node":"n1","stale":false,"state":"ready"}`
	if string(b) != want || next == "" {
		t.Errorf("%s\nwant %s", b, want)
	}
	// The cursor goes with the same conditions in any spelling, whatever the
	// limit, and with no others.
	params.Set("cursor", next)
	params.Set("fare.gte", "1")
	params.Set("limit", "7")
	if _, err := q.Query(t.Context(), "trips", "test_index", params); err != nil || l.got.After == nil || *l.got.After != (uuid.UUID{15: 1}) {
		t.Errorf("%v, after %v", err, l.got.After)
	}
	params.Set("fare.gte", "2")
	var refused *Error
	if _, err := q.Query(t.Context(), "trips", "test_index", params); !errors.As(err, &refused) || refused.Code() != CodeBadCursor {
		t.Errorf("another condition: %v", err)
	}
	l.entries = nil
	a, err = q.Query(t.Context(), "trips", "test_index", url.Values{"zone": {""}})
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(a); !strings.HasPrefix(string(b), `{"entries":[],"next":null,`) {
		t.Errorf("%s", b)
	}
}

// What package indexdef would refuse must not get through here either.
func TestHostileDefinitions(t *testing.T) {
	ok := []indexdef.Column{{Key: "BASE", Fields: []indexdef.Field{{Name: "a", Type: indexdef.String}}}}
	for _, d := range []indexdef.Definition{
		{},
		{Datastore: "trips", Table: "x"},
		{Datastore: "trips`", Table: "x", Columns: ok},
		{Datastore: "trips", Table: "x`; DROP TABLE entity; --", Columns: ok},
		{Datastore: "trips", Table: "x.y", Columns: ok},
		{Datastore: "trips", Table: "x_home", Columns: ok},
		{Datastore: "trips", Table: strings.Repeat("x", 56), Columns: ok},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "BASE"}}},
		{Datastore: "trips", Table: "x", Columns: append(ok, ok...)},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "B'", Fields: ok[0].Fields}}},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "B", Fields: []indexdef.Field{{Name: "a` INT, `b", Type: indexdef.String}}}}},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "B", Fields: []indexdef.Field{{Name: "", Type: indexdef.String}}}}},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "B", Fields: []indexdef.Field{{Name: strings.Repeat("a", 63), Type: indexdef.String}}}}},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "B", Fields: []indexdef.Field{{Name: "a", Type: "text; DROP"}}}}},
		{Datastore: "trips", Table: "x", Columns: []indexdef.Column{{Key: "B", Fields: []indexdef.Field{{Name: "a", Type: indexdef.Int64}, {Name: "a", Type: indexdef.Int64}}}}},
	} {
		if ix, err := NewIndex(d); err == nil {
			t.Errorf("%+v: taken as %s", d, ix.Describe())
		} else if len(err.Error()) > 400 {
			t.Errorf("%d bytes of message", len(err.Error()))
		}
	}
}
