package client

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cellog/cellog"
)

// PutResult says how a put ended and where the cell that stands is.
type PutResult struct {
	cellog.Stored
	// Buffered is set on a 202: durable, not readable yet. Outcome is zero
	// then, for it may still lose to another body.
	Buffered bool
	// Token is what readers of an index wait for; empty on a 202.
	Token string
}

// Put stores one cell. When another body stands under the key the error is a
// conflict (IsConflict) and the result says where that body is.
func (c *Client) Put(ctx context.Context, datastore string, p cellog.Put) (PutResult, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	if p.TraceParent != "" {
		h.Set("Traceparent", p.TraceParent)
	}
	a, err := c.do(ctx, request{method: http.MethodPut, path: cellPath(datastore, p.Key, true), header: h, body: p.Body,
		affinity: c.affinity(datastore, p.Key), write: true})
	if a == nil {
		return PutResult{}, err
	}
	res := PutResult{Buffered: a.status == http.StatusAccepted, Token: a.header.Get("Cellog-Token")}
	res.Outcome = outcomeOf(a.status)
	if res.Outcome != 0 {
		res.Shard, res.AddedID, res.Epoch, res.CreatedAt = place(a.header)
	}
	return res, err
}

func outcomeOf(status int) cellog.Outcome {
	switch status {
	case http.StatusCreated:
		return cellog.Created
	case http.StatusOK:
		return cellog.Same
	case http.StatusConflict:
		return cellog.Conflict
	}
	return 0
}

// place reads where a cell is from an answer's headers; what is missing stays
// zero.
func place(h http.Header) (cellog.ShardID, cellog.AddedID, cellog.Epoch, time.Time) {
	shard, _ := strconv.Atoi(h.Get("Cellog-Shard"))
	id, _ := strconv.ParseInt(h.Get("Cellog-Added-Id"), 10, 64)
	epoch, _ := strconv.ParseInt(h.Get("Cellog-Epoch"), 10, 32)
	at, _ := time.Parse(time.RFC3339Nano, h.Get("Cellog-Created-At"))
	return cellog.ShardID(shard), cellog.AddedID(id), cellog.Epoch(epoch), at
}

// BatchResult is what became of one put of a batch: its result, or its error.
type BatchResult struct {
	PutResult
	// Err is nil, a conflict (IsConflict), or why the cell was not stored.
	Err error
}

// batchItem is one result as the worker sends it.
type batchItem struct {
	Status    int            `json:"status"`
	Shard     cellog.ShardID `json:"shard"`
	AddedID   cellog.AddedID `json:"added_id"`
	Epoch     cellog.Epoch   `json:"epoch"`
	CreatedAt time.Time      `json:"created_at"`
	Token     string         `json:"token"`
	Code      string         `json:"code"`
	Title     string         `json:"title"`
	Detail    string         `json:"detail"`
}

// PutBatch stores many cells in one request; the results are in the order of
// puts. The error is that of the request as a whole; then results that were
// already known are still filled in, and every other has the error too. Puts
// that were answered 429, 503 or 504 are sent again, alone, until the budget
// ends. The worker's limits (10,000 cells and 64 MiB unless set) are the
// caller's to keep.
func (c *Client) PutBatch(ctx context.Context, datastore string, puts []cellog.Put) ([]BatchResult, error) {
	results := make([]BatchResult, len(puts))
	unknown := make([]bool, len(puts))
	var open []int
	for i := range puts {
		if !json.Valid(puts[i].Body) {
			results[i].Err = &Problem{Status: 400, Code: "invalid_json", Detail: "the body is not JSON"}
			continue
		}
		open = append(open, i)
	}
	stop := time.Now().Add(c.cfg.Budget)
	backoff := c.cfg.MinBackoff
	for len(open) > 0 {
		items, err := c.putBatch(ctx, datastore, puts, open)
		if err != nil {
			for _, i := range open {
				results[i].Err = err
				if unknown[i] && !IsUnknown(err) {
					results[i].Err = &UnknownError{Last: err}
				}
			}
			return results, err
		}
		var again []int
		for n, i := range open {
			item := &items[n]
			r := &results[i]
			*r = BatchResult{PutResult: PutResult{Buffered: item.Status == http.StatusAccepted, Token: item.Token}}
			r.Stored = cellog.Stored{Outcome: outcomeOf(item.Status), Shard: item.Shard, AddedID: item.AddedID, Epoch: item.Epoch, CreatedAt: item.CreatedAt}
			if item.Status < 400 {
				continue
			}
			r.Err = &Problem{Status: item.Status, Code: item.Code, Title: item.Title, Detail: item.Detail}
			retry, u := retryable(item.Status)
			unknown[i] = unknown[i] || u
			if retry {
				again = append(again, i)
			}
			if unknown[i] && item.Status != http.StatusConflict {
				r.Err = &UnknownError{Last: r.Err}
			}
		}
		open = again
		if len(open) == 0 {
			break
		}
		wait := backoff/2 + rand.N(backoff/2+1)
		backoff = min(2*backoff, c.cfg.MaxBackoff)
		if time.Now().Add(wait).After(stop) {
			break
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return results, ctx.Err()
		case <-t.C:
		}
	}
	return results, nil
}

func (c *Client) putBatch(ctx context.Context, datastore string, puts []cellog.Put, which []int) ([]batchItem, error) {
	size := 2
	for _, i := range which {
		size += len(puts[i].Body) + 160
	}
	body := append(make([]byte, 0, size), '[')
	for n, i := range which {
		if n > 0 {
			body = append(body, ',')
		}
		body = appendItem(body, &puts[i])
	}
	body = append(body, ']')
	a, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/" + url.PathEscape(datastore) + "/cells",
		header: http.Header{"Content-Type": {"application/json"}}, body: body, affinity: c.affinity(datastore, puts[which[0]].Key), write: true})
	if err != nil {
		return nil, err
	}
	var out struct {
		Results []batchItem `json:"results"`
	}
	if err := json.Unmarshal(a.body, &out); err != nil {
		return nil, &UnknownError{Last: fmt.Errorf("the answer to the batch: %w", err)}
	}
	if len(out.Results) != len(which) {
		return nil, &UnknownError{Last: fmt.Errorf("the answer to the batch has %d results for %d cells", len(out.Results), len(which))}
	}
	return out.Results, nil
}

// appendItem writes a put as a batch item, its body untouched.
func appendItem(dst []byte, p *cellog.Put) []byte {
	dst = append(dst, `{"row_key":"`...)
	dst = append(dst, p.Row.String()...)
	dst = append(dst, `","column":`...)
	dst = strconv.AppendQuoteToASCII(dst, p.Column) // legal columns are ASCII letters, digits and underscores
	dst = append(dst, `,"ref_key":`...)
	dst = strconv.AppendInt(dst, int64(p.Ref), 10)
	dst = append(dst, `,"body":`...)
	dst = append(dst, p.Body...)
	return append(dst, '}')
}

func cellPath(datastore string, k cellog.Key, ref bool) string {
	p := "/v1/" + url.PathEscape(datastore) + "/cells/" + k.Row.String() + "/" + url.PathEscape(k.Column)
	if ref {
		p += "/" + strconv.FormatInt(int64(k.Ref), 10)
	}
	return p
}
