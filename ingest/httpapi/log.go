package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cellog/cellog"
)

// getLog pages through a shard's log, up to what is final unless provisional=1.
func (a *API) getLog(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, shards, err := a.datastore(v)
	if err != nil {
		return err
	}
	num, err := strconv.Atoi(v["shard"])
	if err != nil || strconv.Itoa(num) != v["shard"] {
		return fail("bad_shard", fmt.Sprintf("shard %.40q: want 0 to %d", v["shard"], shards-1))
	}
	if num < 0 || num >= shards {
		return fail("unknown_shard", fmt.Sprintf("shard %d: %s has shards 0 to %d", num, ds, shards-1))
	}
	shard := cellog.ShardID(num)
	q := r.URL.Query()
	from, err := readFrom(q)
	if err != nil {
		return err
	}
	n, err := limit(q)
	if err != nil {
		return err
	}
	column := q.Get("column")
	if column != "" {
		if err := cellog.CheckColumn(column); err != nil {
			return fail("bad_column", err.Error())
		}
	}
	provisional := q.Get("provisional")
	if provisional != "" && provisional != "1" && provisional != "0" {
		return fail("bad_parameter", "provisional: want 1 or 0")
	}
	mark, known := a.final(ds, shard)
	if !known && provisional != "1" {
		return fail("final_unknown", "this worker has not read the positions yet; provisional=1 shows all that is stored")
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	var after cellog.AddedID
	switch since := q.Get("since"); {
	case since != "" && q.Get("after") != "":
		return fail("bad_parameter", "after and since: want one of them")
	case since != "":
		at, err := time.Parse(time.RFC3339Nano, since)
		if err != nil {
			return fail("bad_parameter", fmt.Sprintf("since %.60q: want a time such as 2026-01-02T15:04:05Z", since))
		}
		if after, err = a.cfg.Store.Before(ctx, ds, shard, at, from); err != nil {
			return err
		}
	case q.Get("after") != "":
		id, err := strconv.ParseInt(q.Get("after"), 10, 64)
		if err != nil || id < 0 {
			return fail("bad_parameter", fmt.Sprintf("after %.40q: want an added_id, 0 for the start", q.Get("after")))
		}
		after = cellog.AddedID(id)
	}
	upTo := mark
	if provisional == "1" {
		if upTo, err = a.cfg.Store.Last(ctx, ds, shard, from); err != nil {
			return err
		}
	}
	cells, more, o, err := a.cfg.Store.Log(ctx, ds, shard, after, upTo, column, n, from)
	if err != nil {
		return err
	}
	final := len(cells)
	for final > 0 && cells[final-1].AddedID > mark {
		final--
	}
	if err := a.cfg.Store.Sequences(ctx, ds, shard, after, cells[:final], from); err != nil {
		return err
	}
	next := ""
	if more {
		next = strconv.FormatInt(int64(cells[len(cells)-1].AddedID), 10)
	}
	extra := fmt.Sprintf(`,"up_to":%d`, upTo)
	if known {
		extra += fmt.Sprintf(`,"final":%d`, mark)
	}
	return writeCells(w, cells, o, next, extra)
}
