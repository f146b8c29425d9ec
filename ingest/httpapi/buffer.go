package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// rejectedJSON is a cell that was answered 202 and then lost or was refused.
type rejectedJSON struct {
	RowKey     uuid.UUID       `json:"row_key"`
	Column     string          `json:"column"`
	RefKey     cellog.RefKey   `json:"ref_key"`
	Shard      cellog.ShardID  `json:"shard"`
	Reason     string          `json:"reason"`
	Body       json.RawMessage `json:"body"`
	Winner     *winnerJSON     `json:"winner,omitempty"`
	RejectedAt string          `json:"rejected_at"`
	HeldBy     string          `json:"held_by"`
}

// winnerJSON is the cell that stands.
type winnerJSON struct {
	Epoch   cellog.Epoch    `json:"epoch"`
	AddedID cellog.AddedID  `json:"added_id"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// getRejected lists the rejected cells of a datastore, with both bodies.
func (a *API) getRejected(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	n, err := limit(q)
	if err != nil {
		return err
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	cells, next, more, err := a.cfg.Store.Rejected(ctx, ds, q.Get("after"), n)
	if err != nil {
		return err
	}
	out := struct {
		Rejected []rejectedJSON `json:"rejected"`
		Next     string         `json:"next"`
		More     bool           `json:"more"`
	}{[]rejectedJSON{}, next, more}
	for i := range cells {
		c := &cells[i]
		j := rejectedJSON{RowKey: c.Row, Column: c.Column, RefKey: c.Ref, Shard: c.Shard, Reason: c.Reason,
			RejectedAt: c.RejectedAt.Format(timeFormat), HeldBy: c.Cluster}
		if j.Body, err = body.AppendJSON(nil, c.Body, 0); err != nil {
			return err
		}
		if c.WinnerAddedID > 0 {
			j.Winner = &winnerJSON{Epoch: c.WinnerEpoch, AddedID: c.WinnerAddedID}
			if c.WinnerBody != nil {
				if j.Winner.Body, err = body.AppendJSON(nil, c.WinnerBody, 0); err != nil {
					return err
				}
			}
		}
		out.Rejected = append(out.Rejected, j)
	}
	return writeValue(w, http.StatusOK, out)
}

// getBuffered says how many cells wait for their shard's primary, and where.
func (a *API) getBuffered(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	all, err := a.cfg.Store.Buffered(ctx, ds)
	if err != nil {
		return err
	}
	type entry struct {
		HeldBy string         `json:"held_by"`
		Shard  cellog.ShardID `json:"shard"`
		Cells  int            `json:"cells"`
		Oldest time.Time      `json:"oldest"`
	}
	out := struct {
		Buffered []entry `json:"buffered"`
	}{[]entry{}}
	for _, b := range all {
		out.Buffered = append(out.Buffered, entry{b.Node, b.Shard, b.Cells, b.Oldest})
	}
	return writeValue(w, http.StatusOK, out)
}
