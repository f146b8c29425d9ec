package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/cellog/cellog"
)

// put stores one cell.
func (a *API) put(w http.ResponseWriter, r *http.Request, v vars) error {
	text, release, p, ds, err := a.putRequest(w, r, v)
	if err != nil {
		return err
	}
	defer release()
	p.Body = text
	ctx, cancel := context.WithTimeout(r.Context(), a.cfg.PutTimeout)
	defer cancel()
	stored, err := a.cfg.Ingest.Put(ctx, ds, p)
	if err != nil {
		return err
	}
	if stored.Outcome == cellog.Buffered {
		w.Header()["Cellog-Shard"] = []string{strconv.Itoa(int(stored.Shard))}
		writeJSON(w, http.StatusAccepted, fmt.Appendf(nil, "{\"outcome\":\"buffered\",\"shard\":%d}\n", stored.Shard))
		return nil
	}
	pl := placeOf(ds, p.Key, stored)
	h := w.Header()
	setPlace(h, stored.Shard, stored.AddedID, stored.Epoch, p.Ref, stored.CreatedAt)
	h["Cellog-Token"] = []string{pl.Token}
	if stored.Outcome == cellog.Conflict {
		pr := problemOf(fail("conflict", "a cell is immutable: the first body stays"))
		pr.place = pl
		writeProblem(w, pr)
		return nil
	}
	writeJSON(w, outcomeStatus(stored.Outcome), append(pl.appendJSON(make([]byte, 0, 320)), '\n'))
	return nil
}

// putRequest reads a put. Whatever is wrong, the body is read away.
func (a *API) putRequest(w http.ResponseWriter, r *http.Request, v vars) (text []byte, release func(), p cellog.Put, ds string, err error) {
	check := func() error {
		if ds, _, err = a.datastore(v); err != nil {
			return err
		}
		if p.Key, err = key(v); err != nil {
			return err
		}
		if p.TraceParent, err = traceParent(r); err != nil {
			return err
		}
		_, err = mediaType(r, "application/json")
		return err
	}
	if err = check(); err != nil {
		a.drain(w, r)
		return nil, nil, p, ds, err
	}
	text, release, err = a.readBody(w, r, a.cfg.Limits.Bytes, "body_too_large")
	return text, release, p, ds, err
}

// result is what became of one item of a batch.
type result struct {
	Status int    `json:"status"`
	Code   string `json:"code,omitempty"`
	Title  string `json:"title,omitempty"`
	Detail string `json:"detail,omitempty"`
	*place
}

func problemResult(err error) result {
	p := problemOf(err)
	return result{Status: p.Status, Code: p.Code, Title: p.Title, Detail: p.Detail}
}

// putBatch stores many cells, each by itself; one result per cell, same order.
func (a *API) putBatch(w http.ResponseWriter, r *http.Request, v vars) error {
	var ds, media, trace string
	check := func() (err error) {
		if ds, _, err = a.datastore(v); err != nil {
			return err
		}
		if trace, err = traceParent(r); err != nil {
			return err
		}
		media, err = mediaType(r, "application/json", "application/x-ndjson", "application/jsonl")
		return err
	}
	if err := check(); err != nil {
		a.drain(w, r)
		return err
	}
	text, release, err := a.readBody(w, r, a.cfg.BatchBytes, "batch_too_large")
	if err != nil {
		return err
	}
	defer release()
	items, err := parseBatch(text, media != "application/json", a.cfg.BatchCells)
	if err != nil {
		return err
	}
	results := make([]result, len(items))
	puts := make([]cellog.Put, 0, len(items))
	which := make([]int, 0, len(items))
	for i := range items {
		p, err := items[i].put()
		if err != nil {
			results[i] = problemResult(err)
			continue
		}
		p.TraceParent = trace
		puts = append(puts, p)
		which = append(which, i)
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.cfg.PutTimeout)
	defer cancel()
	failed := itemFailures{}
	for n, res := range a.cfg.Ingest.PutMany(ctx, ds, puts) {
		out := &results[which[n]]
		switch {
		case res.Err != nil:
			*out = problemResult(res.Err)
			failed.add(*out, res.Err)
		case res.Stored.Outcome == cellog.Conflict:
			*out = problemResult(fail("conflict", "a cell is immutable: the first body stays"))
			out.place = placeOf(ds, puts[n].Key, res.Stored)
		case res.Stored.Outcome == cellog.Buffered:
			*out = result{Status: http.StatusAccepted}
		default:
			*out = result{Status: outcomeStatus(res.Stored.Outcome), place: placeOf(ds, puts[n].Key, res.Stored)}
		}
	}
	a.logItems(r, failed)
	return writeValue(w, http.StatusOK, struct {
		Results []result `json:"results"`
	}{results})
}

// itemFailures are the items of a batch that failed for no fault of the
// client, by code: a batch of ten thousand that all fail is one line of log.
type itemFailures map[string]*itemFailure

type itemFailure struct {
	items int
	first error
}

func (f itemFailures) add(r result, err error) {
	if r.Status < 500 {
		return
	}
	if f[r.Code] == nil {
		f[r.Code] = &itemFailure{first: err}
	}
	f[r.Code].items++
}

func (a *API) logItems(r *http.Request, failed itemFailures) {
	if r.Context().Err() != nil {
		return // the client has gone, and nobody failed
	}
	for _, code := range slices.Sorted(maps.Keys(failed)) {
		a.cfg.Logger.Error("items of a batch failed", "route", routeOf(r), "code", code, "items", failed[code].items, "first_error", failed[code].first)
	}
}

// getBatch reads many cells.
func (a *API) getBatch(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err == nil {
		_, err = mediaType(r, "application/json")
	}
	if err != nil {
		a.drain(w, r)
		return err
	}
	from, err := readFrom(r.URL.Query())
	if err != nil {
		a.drain(w, r)
		return err
	}
	text, release, err := a.readBody(w, r, a.cfg.BatchBytes, "batch_too_large")
	if err != nil {
		return err
	}
	defer release()
	items, err := parseBatch(text, false, a.cfg.BatchCells)
	if err != nil {
		return err
	}
	gets := make([]cellog.Get, 0, len(items))
	which := make([]int, 0, len(items))
	failed := make([]error, len(items))
	for i := range items {
		g, err := items[i].get()
		if err != nil {
			failed[i] = err
			continue
		}
		gets = append(gets, g)
		which = append(which, i)
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	cells, errs, o, err := a.cfg.Store.Get(ctx, ds, gets, a.cfg.BatchBytes, from)
	if err != nil {
		return err
	}
	at := make([]*cellog.Cell, len(items))
	for n, i := range which {
		failed[i] = errs[n]
		at[i] = &cells[n]
	}
	out, broken := []byte(`{"results":[`), itemFailures{}
	for i := range items {
		if i > 0 {
			out = append(out, ',')
		}
		if failed[i] == nil {
			if out, err = appendCell(out, at[i], o, `"status":200,`); err != nil {
				return err
			}
			continue
		}
		res := problemResult(failed[i])
		text, err := json.Marshal(res)
		if err != nil {
			return err
		}
		out = append(out, text...)
		broken.add(res, failed[i])
	}
	a.logItems(r, broken)
	setOrigin(w.Header(), o)
	writeJSON(w, http.StatusOK, append(out, "]}\n"...))
	return nil
}
