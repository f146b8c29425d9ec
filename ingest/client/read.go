package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cellog/cellog"
	"github.com/google/uuid"
)

// Cell is a cell as it was read, with where the answer came from.
type Cell struct {
	cellog.Cell
	// ReadFrom is master or minion.
	ReadFrom string
	// Stale is set when a newer answer may exist elsewhere.
	Stale bool
	// Lag is how far the minion that answered may be behind; cellog.UnknownLag
	// where it did not say, zero for a master and in lists.
	Lag time.Duration
}

// wireCell is a cell as lists carry it.
type wireCell struct {
	RowKey    uuid.UUID       `json:"row_key"`
	Column    string          `json:"column"`
	RefKey    cellog.RefKey   `json:"ref_key"`
	Body      json.RawMessage `json:"body"`
	Shard     cellog.ShardID  `json:"shard"`
	AddedID   cellog.AddedID  `json:"added_id"`
	Epoch     cellog.Epoch    `json:"epoch"`
	Sequence  cellog.Sequence `json:"sequence"`
	CreatedAt time.Time       `json:"created_at"`
	ReadFrom  string          `json:"read_from"`
	Stale     bool            `json:"stale"`
}

func (w *wireCell) cell(datastore string) Cell {
	return Cell{Cell: cellog.Cell{Key: cellog.Key{Row: w.RowKey, Column: w.Column, Ref: w.RefKey}, Datastore: datastore, Shard: w.Shard,
		AddedID: w.AddedID, Epoch: w.Epoch, Sequence: w.Sequence, CreatedAt: w.CreatedAt, Body: w.Body}, ReadFrom: w.ReadFrom, Stale: w.Stale}
}

// ReadOptions say how to read.
type ReadOptions struct {
	// From says which node to ask. Default the master.
	From cellog.ReadFrom
}

func (o ReadOptions) query() url.Values {
	q := url.Values{}
	if o.From != cellog.Master {
		q.Set("read", o.From.String())
	}
	return q
}

// Get reads one version of a cell. IsNotFound tells that there is none.
func (c *Client) Get(ctx context.Context, datastore string, k cellog.Key, o ReadOptions) (Cell, error) {
	return c.get(ctx, datastore, k, true, o)
}

// Newest reads the newest cell of a row's column; k.Ref is ignored.
func (c *Client) Newest(ctx context.Context, datastore string, k cellog.Key, o ReadOptions) (Cell, error) {
	return c.get(ctx, datastore, k, false, o)
}

func (c *Client) get(ctx context.Context, datastore string, k cellog.Key, ref bool, o ReadOptions) (Cell, error) {
	a, err := c.do(ctx, request{method: http.MethodGet, path: cellPath(datastore, k, ref), query: o.query(), affinity: c.affinity(datastore, k)})
	if err != nil {
		return Cell{}, err
	}
	out := Cell{Cell: cellog.Cell{Key: k, Datastore: datastore, Body: a.body}, ReadFrom: a.header.Get("Cellog-Read-From")}
	out.Shard, out.AddedID, out.Epoch, out.CreatedAt = place(a.header)
	out.Stale = a.header.Get("Cellog-Stale") == "true"
	if out.ReadFrom == cellog.Minion.String() {
		out.Lag = cellog.UnknownLag
		if ms, err := strconv.ParseInt(a.header.Get("Cellog-Lag-Ms"), 10, 64); err == nil && ms >= 0 {
			out.Lag = time.Duration(ms) * time.Millisecond
		}
	}
	if v := a.header.Get("Cellog-Ref-Key"); v != "" {
		if out.Ref, err = cellog.ParseRefKey(v); err != nil {
			return Cell{}, err
		}
	}
	return out, nil
}

// Page is a part of a list of cells.
type Page struct {
	Cells []Cell
	// Next continues the list; empty at its end.
	Next string
}

func (c *Client) list(ctx context.Context, datastore, path string, q url.Values, affinity uint32) (Page, error) {
	a, err := c.do(ctx, request{method: http.MethodGet, path: path, query: q, affinity: affinity})
	if err != nil {
		return Page{}, err
	}
	var out struct {
		Cells []wireCell `json:"cells"`
		Next  cursor     `json:"next"`
	}
	if err := json.Unmarshal(a.body, &out); err != nil {
		return Page{}, fmt.Errorf("the answer's list: %w", err)
	}
	p := Page{Next: string(out.Next), Cells: make([]Cell, len(out.Cells))}
	for i := range out.Cells {
		p.Cells[i] = out.Cells[i].cell(datastore)
	}
	return p, nil
}

// cursor reads a cursor, be it text, a number or null.
type cursor string

func (s *cursor) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		*s = ""
	case string:
		*s = cursor(v)
	default:
		*s = cursor(b)
	}
	return nil
}

// History reads a column's versions, one page; cursor is empty at first, limit
// zero means the worker's default.
func (c *Client) History(ctx context.Context, datastore string, k cellog.Key, limit int, cursor string, o ReadOptions) (Page, error) {
	q := o.query()
	q.Set("versions", "all")
	page(q, limit, cursor)
	return c.list(ctx, datastore, cellPath(datastore, k, false), q, c.affinity(datastore, k))
}

// Row reads the newest cell of each of a row's columns, or all versions.
func (c *Client) Row(ctx context.Context, datastore string, row uuid.UUID, all bool, o ReadOptions) (Page, error) {
	q := o.query()
	if all {
		q.Set("versions", "all")
	}
	return c.list(ctx, datastore, "/v1/"+url.PathEscape(datastore)+"/cells/"+row.String(), q, c.affinity(datastore, cellog.Key{Row: row}))
}

// LogQuery chooses a part of a shard's log.
type LogQuery struct {
	Shard cellog.ShardID
	// After is the last added_id that is not wanted any more.
	After cellog.AddedID
	// Since starts at a time instead; ignored when zero.
	Since time.Time
	// Column keeps only one column; empty means all.
	Column string
	// Limit is the page's size; zero means the worker's default.
	Limit int
	// Provisional also reads what is not final yet.
	Provisional bool
}

// Log reads a page of a shard's log. Cells carry added_id, epoch and sequence.
func (c *Client) Log(ctx context.Context, datastore string, l LogQuery) (Page, error) {
	q := url.Values{}
	if !l.Since.IsZero() {
		q.Set("since", l.Since.UTC().Format(time.RFC3339Nano))
	} else {
		q.Set("after", strconv.FormatInt(int64(l.After), 10))
	}
	if l.Column != "" {
		q.Set("column", l.Column)
	}
	if l.Provisional {
		q.Set("provisional", "1")
	}
	page(q, l.Limit, "")
	return c.list(ctx, datastore, fmt.Sprintf("/v1/%s/log/%d", url.PathEscape(datastore), l.Shard), q, uint32(l.Shard))
}

func page(q url.Values, limit int, cursor string) {
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
}

// IndexQuery asks an index; query has the fields and their operators as the
// API takes them (field, field.ne, field.lt, …), and limit, cursor and so on.
// The answer is the JSON document as it came.
func (c *Client) IndexQuery(ctx context.Context, datastore, index string, query url.Values) (json.RawMessage, error) {
	a, err := c.do(ctx, request{method: http.MethodGet, path: "/v1/" + url.PathEscape(datastore) + "/indexes/" + url.PathEscape(index), query: query,
		affinity: uint32(cellog.Murmur2([]byte(query.Encode())))})
	if err != nil {
		return nil, err
	}
	return a.body, nil
}

// State is what is known of a key.
type State struct {
	// State is one of cellog's State constants.
	State string `json:"state"`
	// Final says whether the cell that stands is committed in Kafka; nil where
	// none stands or it is not known.
	Final *bool `json:"final"`
	// Rejected are bodies that were answered 202 and then lost, or were
	// refused. Two servers hold each, so one may be here twice.
	Rejected []struct {
		Reason string `json:"reason"`
		Winner *struct {
			Epoch   cellog.Epoch   `json:"epoch"`
			AddedID cellog.AddedID `json:"added_id"`
		} `json:"winner"`
		RejectedAt time.Time `json:"rejected_at"`
	} `json:"rejected"`
}

// State says what became of a put: whether its cell stands, waits for its
// primary (it was answered 202), or was rejected.
func (c *Client) State(ctx context.Context, datastore string, k cellog.Key) (State, error) {
	a, err := c.do(ctx, request{method: http.MethodGet, path: cellPath(datastore, k, true) + "/state", affinity: c.affinity(datastore, k)})
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(a.body, &s); err != nil {
		return State{}, fmt.Errorf("the state of %s: %w", k, err)
	}
	return s, nil
}
