package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Rejected is a cell that was answered 202 and then lost to another body, or
// was refused.
type Rejected struct {
	RowKey uuid.UUID       `json:"row_key"`
	Column string          `json:"column"`
	RefKey cellog.RefKey   `json:"ref_key"`
	Shard  cellog.ShardID  `json:"shard"`
	Reason string          `json:"reason"` // conflict, or the code of the refusal
	Body   json.RawMessage `json:"body"`
	// Winner is the cell that stands; nil where the cell was refused.
	Winner *struct {
		Epoch   cellog.Epoch    `json:"epoch"`
		AddedID cellog.AddedID  `json:"added_id"`
		Body    json.RawMessage `json:"body"`
	} `json:"winner,omitempty"`
	RejectedAt time.Time `json:"rejected_at"`
	// HeldBy is the cluster that keeps the record. Each cell has one on both
	// machines that held its copies.
	HeldBy string `json:"held_by"`
}

// Rejected returns a page of a datastore's rejected cells behind a place, which
// is empty at first; next is the place behind the page, to go on now or later.
func (c *Client) Rejected(ctx context.Context, datastore, after string, limit int) (page []Rejected, next string, more bool, err error) {
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var out struct {
		Rejected []Rejected `json:"rejected"`
		Next     string     `json:"next"`
		More     bool       `json:"more"`
	}
	err = c.getJSON(ctx, "/v1/"+url.PathEscape(datastore)+"/rejected", q, &out)
	return out.Rejected, out.Next, out.More, err
}

// Buffered is how many cells of a shard a server holds that wait for the
// shard's primary.
type Buffered struct {
	HeldBy string         `json:"held_by"`
	Shard  cellog.ShardID `json:"shard"`
	Cells  int            `json:"cells"`
	Oldest time.Time      `json:"oldest"`
}

// Buffered returns the cells of a datastore that wait, by shard and server;
// each is on two servers.
func (c *Client) Buffered(ctx context.Context, datastore string) ([]Buffered, error) {
	var out struct {
		Buffered []Buffered `json:"buffered"`
	}
	err := c.getJSON(ctx, "/v1/"+url.PathEscape(datastore)+"/buffered", nil, &out)
	return out.Buffered, err
}

func (c *Client) getJSON(ctx context.Context, path string, q url.Values, out any) error {
	a, err := c.do(ctx, request{method: http.MethodGet, path: path, query: q})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(a.body, out); err != nil {
		return fmt.Errorf("the answer to %s: %w", path, err)
	}
	return nil
}
