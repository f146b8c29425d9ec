package indexer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// The limits of a query.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
	// MaxFilters bounds the conditions of a query, MaxIn the values of all its
	// .in operators.
	MaxFilters = 64
	MaxIn      = 1000
)

// Querier answers queries of indexes. Its methods may be called at the same
// time.
type Querier struct {
	tables  Tables
	indexes map[string]*Index
}

// NewQuerier returns a Querier of some indexes.
func NewQuerier(tables Tables, indexes []*Index) *Querier {
	q := &Querier{tables: tables, indexes: map[string]*Index{}}
	for _, ix := range indexes {
		q.indexes[ix.String()] = ix
	}
	return q
}

// Query answers a query with the parameters of the HTTP API:
//
//	field=v                  required of the shard field, allowed of all
//	field.ne=v .lt .lte .gt .gte
//	field.in=a,b             repeated for values that have a comma
//	select=a,b               the fields to return; default all
//	limit=1…1000             default 100
//	cursor=                  what an earlier answer gave as next
//	read=master|minion       default master
//
// Several conditions must all hold; null meets none. The result is an *Answer.
// A query that is refused returns an *Error.
func (q *Querier) Query(ctx context.Context, datastore, index string, params url.Values) (any, error) {
	ix := q.indexes[datastore+"/"+index]
	if ix == nil {
		return nil, refuse(CodeUnknownIndex, "datastore %.40q has no index %.80q", datastore, index)
	}
	s, mark, err := parseQuery(ix, params)
	if err != nil {
		return nil, err
	}
	limit := s.Limit
	s.Limit++ // one more says whether there is more
	got, err := q.tables.Select(ctx, s)
	if err != nil {
		return nil, err
	}
	a := &Answer{index: ix, fields: s.Fields, Entries: got.Entries, Origin: got.Origin, Building: got.Building}
	if len(a.Entries) > limit {
		a.Entries = a.Entries[:limit]
		a.Next = cursor(mark, a.Entries[limit-1].Row)
	}
	return a, nil
}

var ops = map[string]Op{"ne": NotEqual, "lt": Less, "lte": LessOrEqual, "gt": Greater, "gte": GreaterOrEqual, "in": In}

// parseQuery reads the parameters. mark is what a cursor is good for: the same
// index with the same conditions.
func parseQuery(ix *Index, params url.Values) (s Select, mark [8]byte, err error) {
	s = Select{Index: ix, Limit: DefaultLimit}
	var after string
	in, conditions := 0, []string{ix.Describe()}
	for _, name := range sortedKeys(params) {
		values := params[name]
		if slices.Contains([]string{"select", "limit", "cursor", "read"}, name) {
			if len(values) != 1 {
				return s, mark, refuse(CodeUnknownParameter, "%s is there %d times: want it once", name, len(values))
			}
			switch name {
			case "select":
				s.Fields, err = parseSelect(ix, values[0])
			case "limit":
				s.Limit, err = parseLimit(values[0])
			case "cursor":
				after = values[0]
			case "read":
				if s.Read, err = cellog.ParseReadFrom(values[0]); err != nil {
					err = refuse(CodeBadRead, "%v", err)
				}
			}
			if err != nil {
				return s, mark, err
			}
			continue
		}
		f, err := parseFilter(ix, name, values)
		if err != nil {
			return s, mark, err
		}
		if f.Op == In {
			in += len(f.Values)
		}
		for _, v := range f.Values {
			conditions = append(conditions, fmt.Sprint(f.Field, " ", f.Op, " ", v.Text()))
		}
		if f.Field == 0 && f.Op == Equal {
			s.Shard = f.Values[0]
		} else {
			s.Filters = append(s.Filters, f)
		}
	}
	switch {
	case s.Shard.Null():
		return s, mark, refuse(CodeMissingShardField, "%s is missing: the index %s is asked by its shard field, %s=VALUE", ix.fields[0].Name, ix.name, ix.fields[0].Name)
	case len(s.Filters) > MaxFilters:
		return s, mark, refuse(CodeBadFilter, "%d conditions: want at most %d", len(s.Filters), MaxFilters)
	case in > MaxIn:
		return s, mark, refuse(CodeBadFilter, "%d values of .in: want at most %d", in, MaxIn)
	}
	if s.Fields == nil {
		for i := range ix.fields {
			s.Fields = append(s.Fields, i)
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(conditions, "\x00")))
	copy(mark[:], sum[:])
	if after != "" {
		s.After, err = parseCursor(mark, after)
	}
	return s, mark, err
}

func sortedKeys(params url.Values) []string {
	names := make([]string, 0, len(params))
	for name := range params {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func parseFilter(ix *Index, name string, values []string) (Filter, error) {
	f := Filter{Field: ix.field(name), Op: Equal}
	if f.Field < 0 {
		if field, op, ok := cutLast(name, "."); ok {
			if f.Field, f.Op = ix.field(field), ops[op]; f.Op == 0 && f.Field >= 0 {
				return f, refuse(CodeBadFilter, "%s: unknown operator %.20q: want .ne, .lt, .lte, .gt, .gte or .in", field, op)
			}
		}
	}
	if f.Field < 0 {
		return f, refuse(CodeUnknownParameter, "%.80q is neither a field of the index %s nor select, limit, cursor or read", name, ix.name)
	}
	if f.Op != In && len(values) != 1 {
		return f, refuse(CodeBadFilter, "%s is there %d times: want it once", name, len(values))
	}
	typ := ix.fields[f.Field].Type
	for _, text := range values {
		parts := []string{text}
		if f.Op == In && (typ != String || len(values) == 1) {
			if len(text) > MaxIn*(MaxString+1) {
				return f, refuse(CodeBadFilter, "%s: too long", name)
			}
			parts = strings.Split(text, ",")
		}
		for _, part := range parts {
			v, err := Parse(typ, part)
			if err != nil {
				return f, refuse(CodeBadFilter, "%s: %.60q is not a value of type %s", name, part, typ)
			}
			f.Values = append(f.Values, v)
		}
	}
	return f, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func parseSelect(ix *Index, text string) ([]int, error) {
	var out []int
	for _, name := range strings.Split(text, ",") {
		i := ix.field(name)
		if i < 0 {
			return nil, refuse(CodeBadSelect, "select: %.80q is not a field of the index %s", name, ix.name)
		}
		if slices.Contains(out, i) {
			return nil, refuse(CodeBadSelect, "select: %s is there twice", name)
		}
		out = append(out, i)
	}
	return out, nil
}

func parseLimit(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > MaxLimit {
		return 0, refuse(CodeBadLimit, "limit %.20q: want 1 to %d", text, MaxLimit)
	}
	return n, nil
}

// A cursor is 1, eight bytes of the query's mark and the last row key.
const cursorVersion = 1

func cursor(mark [8]byte, last uuid.UUID) string {
	return base64.RawURLEncoding.EncodeToString(slices.Concat([]byte{cursorVersion}, mark[:], last[:]))
}

func parseCursor(mark [8]byte, text string) (*uuid.UUID, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text[:min(len(text), 64)])
	if err != nil || len(text) > 64 || len(raw) != 25 || raw[0] != cursorVersion {
		return nil, refuse(CodeBadCursor, "cursor: not one that an answer gave")
	}
	if !bytes.Equal(raw[1:9], mark[:]) {
		return nil, refuse(CodeBadCursor, "cursor: it belongs to another query: repeat the same conditions with it")
	}
	id := uuid.UUID(raw[9:])
	return &id, nil
}

// Answer is what a query found.
type Answer struct {
	index  *Index
	fields []int
	// Entries are in the order of their row keys.
	Entries []Entry
	// Next is the cursor of the next page, or empty.
	Next     string
	Origin   cellog.Origin
	Building bool
}

// MarshalJSON writes {"entries":[{"row_key":…, fields…}],"next":…,
// "read_from":…,"node":…,"stale":…,"state":…}.
func (a *Answer) MarshalJSON() ([]byte, error) {
	b := []byte(`{"entries":[`)
	for i, e := range a.Entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"row_key":"`...)
		b = append(b, e.Row.String()...)
		b = append(b, '"')
		for j, f := range a.fields {
			b = append(b, ',')
			b = appendString(b, a.index.fields[f].Name)
			b = append(b, ':')
			b = e.Values[j].AppendJSON(b)
		}
		b = append(b, '}')
	}
	b = append(b, `],"next":`...)
	if a.Next == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, a.Next)
	}
	state := "ready"
	if a.Building {
		state = "building"
	}
	b = fmt.Appendf(b, `,"read_from":"%s","node":`, a.Origin.From)
	b = appendString(b, a.Origin.Node)
	return fmt.Appendf(b, `,"stale":%t,"state":"%s"}`, a.Origin.Stale, state), nil
}
