package httpapi

import (
	"encoding/base64"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// getVersion reads one version of a cell.
func (a *API) getVersion(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	k, err := key(v)
	if err != nil {
		return err
	}
	from, err := readFrom(r.URL.Query())
	if err != nil {
		return err
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	c, o, err := a.cfg.Store.Version(ctx, ds, k, from)
	return a.answerCell(w, r, c, o, err)
}

// getColumn reads the newest cell of a column, or pages through its versions.
func (a *API) getColumn(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	k, err := rowColumn(v)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	from, err := readFrom(q)
	if err != nil {
		return err
	}
	all, err := allVersions(q)
	if err != nil {
		return err
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	if !all {
		if q.Has("limit") || q.Has("cursor") {
			return fail("bad_parameter", "limit and cursor are for versions=all; the newest cell is one")
		}
		c, o, err := a.cfg.Store.Newest(ctx, ds, k.Row, k.Column, from)
		return a.answerCell(w, r, c, o, err)
	}
	n, err := limit(q)
	if err != nil {
		return err
	}
	k.Ref = math.MinInt64
	if c := q.Get("cursor"); c != "" {
		parts, err := readCursor(c, "h", 1)
		if err != nil {
			return err
		}
		if k.Ref, err = cellog.ParseRefKey(parts[0]); err != nil {
			return errCursor
		}
	}
	cells, more, o, err := a.cfg.Store.History(ctx, ds, k, n, from)
	if err != nil {
		return err
	}
	next := ""
	if last := len(cells) - 1; more && cells[last].Ref < math.MaxInt64 {
		next = writeCursor("h", refText(cells[last].Ref+1))
	}
	return writeCells(w, cells, o, next, "")
}

// getRow reads the newest cell of each column of a row, or all versions.
func (a *API) getRow(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	row, err := cellog.ParseRowKey(v["row_key"])
	if err != nil {
		return fail("bad_row_key", err.Error())
	}
	q := r.URL.Query()
	from, err := readFrom(q)
	if err != nil {
		return err
	}
	all, err := allVersions(q)
	if err != nil {
		return err
	}
	n, err := limit(q)
	if err != nil {
		return err
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	if all {
		return a.rowVersions(w, r.WithContext(ctx), ds, cellog.Key{Row: row, Ref: math.MinInt64}, n, from)
	}
	after := ""
	if c := q.Get("cursor"); c != "" {
		parts, err := readCursor(c, "r", 1)
		if err != nil {
			return err
		}
		after = parts[0]
	}
	cells, more, o, err := a.cfg.Store.Row(ctx, ds, row, after, n, from)
	if err != nil {
		return err
	}
	next := ""
	if more {
		next = writeCursor("r", cells[len(cells)-1].Column)
	}
	return writeCells(w, cells, o, next, "")
}

func (a *API) rowVersions(w http.ResponseWriter, r *http.Request, ds string, start cellog.Key, n int, from cellog.ReadFrom) error {
	if c := r.URL.Query().Get("cursor"); c != "" {
		parts, err := readCursor(c, "v", 2)
		if err != nil {
			return err
		}
		start.Column = parts[0]
		if start.Ref, err = cellog.ParseRefKey(parts[1]); err != nil {
			return errCursor
		}
	}
	cells, more, o, err := a.cfg.Store.Versions(r.Context(), ds, start, n, from)
	if err != nil {
		return err
	}
	next := ""
	if more {
		switch last := cells[len(cells)-1]; last.Ref {
		case math.MaxInt64: // the next cell is of a later column: no name lies between X and X0
			next = writeCursor("v", last.Column+"0", refText(math.MinInt64))
		default:
			next = writeCursor("v", last.Column, refText(last.Ref+1))
		}
	}
	return writeCells(w, cells, o, next, "")
}

func refText(r cellog.RefKey) string { return strconv.FormatInt(int64(r), 10) }

// answerCell writes a single cell, or 304 when the client has it.
func (a *API) answerCell(w http.ResponseWriter, r *http.Request, c cellog.Cell, o cellog.Origin, err error) error {
	if err != nil {
		if o.Node != "" {
			setOrigin(w.Header(), o) // a 404 of a minion says so
		}
		return err
	}
	text, err := body.AppendJSON(nil, c.Body, 0)
	if err != nil {
		return err
	}
	h := w.Header()
	setPlace(h, c.Shard, c.AddedID, c.Epoch, c.Ref, c.CreatedAt)
	setOrigin(h, o)
	tag := etag(text)
	h["Etag"] = []string{tag}
	if c.TraceParent != "" {
		h.Set("Cellog-Traceparent", c.TraceParent)
	}
	if matches(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	writeJSON(w, http.StatusOK, text)
	return nil
}

// matches reports whether an If-None-Match header names the tag.
func matches(header, tag string) bool {
	for h := range strings.SplitSeq(header, ",") {
		h = strings.TrimPrefix(strings.TrimSpace(h), "W/")
		if h == tag || h == "*" {
			return true
		}
	}
	return false
}

func allVersions(q url.Values) (bool, error) {
	switch s := q.Get("versions"); s {
	case "":
		return false, nil
	case "all":
		return true, nil
	default:
		return false, fail("bad_parameter", "versions: want all, or leave it out for the newest")
	}
}

var errCursor = fail("bad_cursor", "use the next of the list that you are paging through, or leave it out")

// writeCursor makes an opaque cursor of a kind and its parts.
func writeCursor(kind string, parts ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + "1 " + strings.Join(parts, " ")))
}

// readCursor reads what writeCursor made.
func readCursor(s, kind string, parts int) ([]string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, errCursor
	}
	f := strings.Split(string(raw), " ")
	if len(f) != parts+1 || f[0] != kind+"1" {
		return nil, errCursor
	}
	return f[1:], nil
}

// getState says what is known of a key.
func (a *API) getState(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	k, err := key(v)
	if err != nil {
		return err
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	st, err := a.cfg.Store.State(ctx, ds, k)
	if err != nil {
		return err
	}
	type winner struct {
		Epoch   cellog.Epoch   `json:"epoch"`
		AddedID cellog.AddedID `json:"added_id"`
	}
	type rejection struct {
		Reason     string    `json:"reason"`
		Winner     *winner   `json:"winner,omitempty"`
		RejectedAt time.Time `json:"rejected_at"`
	}
	out := struct {
		State    string      `json:"state"`
		Final    *bool       `json:"final,omitempty"`
		Cell     *place      `json:"cell,omitempty"`
		Rejected []rejection `json:"rejected,omitempty"`
	}{State: st.State}
	if c := st.Cell; c != nil {
		out.Cell = placeOf(ds, k, cellog.Stored{Shard: c.Shard, AddedID: c.AddedID, Epoch: c.Epoch, CreatedAt: c.CreatedAt})
		out.Cell.Outcome = ""
		if mark, ok := a.final(ds, c.Shard); ok {
			final := c.AddedID <= mark
			out.Final = &final
		}
	}
	for _, rj := range st.Rejected {
		re := rejection{Reason: rj.Reason, RejectedAt: rj.RejectedAt.UTC()}
		if rj.WinnerAddedID > 0 {
			re.Winner = &winner{rj.WinnerEpoch, rj.WinnerAddedID}
		}
		out.Rejected = append(out.Rejected, re)
	}
	return writeValue(w, http.StatusOK, out)
}

// final asks what is final, if anybody knows.
func (a *API) final(datastore string, shard cellog.ShardID) (cellog.AddedID, bool) {
	if a.cfg.Final == nil {
		return 0, false
	}
	return a.cfg.Final(datastore, shard)
}

// queryIndex hands a query to the index part.
func (a *API) queryIndex(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, _, err := a.datastore(v)
	if err != nil {
		return err
	}
	if a.cfg.Index == nil {
		return fail("no_indexes", "index queries are not configured here")
	}
	ctx, cancel := a.reading(r)
	defer cancel()
	res, err := a.cfg.Index.Query(ctx, ds, v["index"], r.URL.Query())
	if err != nil {
		return err
	}
	return writeValue(w, http.StatusOK, res)
}
