package httpapi

import (
	"net/http"
	"strings"
)

// routeDoc is what the OpenAPI document says of a route beyond its path.
type routeDoc struct {
	summary  string
	query    []paramDoc // nil: any parameter
	body     string     // what the request body is, "" if none
	media    []string   // its content types
	statuses map[int]string
	codes    []string // problem codes besides those of every route
}

type paramDoc struct{ name, about string }

var (
	readParam   = paramDoc{"read", "master (default) or minion: which node is asked"}
	limitParam  = paramDoc{"limit", "the largest number of cells in the answer, 1 to 1000, default 100"}
	cursorParam = paramDoc{"cursor", "the next of the page before"}
)

// table is the one table of routes: requests are routed by it and the OpenAPI
// document is made from it.
func (a *API) table() []route {
	js := []string{"application/json"}
	batch := []string{"application/json", "application/x-ndjson", "application/jsonl"}
	cell := map[int]string{200: "the cell's JSON; its place is in the Cellog-* headers", 304: "If-None-Match names its ETag"}
	list := map[int]string{200: "a page of cells"}
	routes := []route{
		{method: http.MethodPut, path: "/v1/{ds}/cells/{row_key}/{column}/{ref_key}", id: "putCell", handle: a.put, doc: routeDoc{
			summary: "Store one immutable cell", query: []paramDoc{}, body: "the cell, any JSON value", media: js,
			statuses: map[int]string{201: "stored, durable and readable", 202: "durable on two other machines, not readable yet: the shard's primary gives no answer", 200: "the same body stands there already"},
			codes:    []string{"bad_row_key", "bad_column", "bad_ref_key", "invalid_json", "conflict", "body_too_large", "unsupported_media_type", "column_limit", "overloaded", "outcome_unknown"}}},
		{method: http.MethodGet, path: "/v1/{ds}/cells/{row_key}/{column}/{ref_key}", id: "getCell", handle: a.getVersion, doc: routeDoc{
			summary: "One version of a cell", query: []paramDoc{readParam}, statuses: cell, codes: []string{"bad_row_key", "bad_column", "bad_ref_key", "not_found"}}},
		{method: http.MethodGet, path: "/v1/{ds}/cells/{row_key}/{column}/{ref_key}/state", id: "getState", handle: a.getState, doc: routeDoc{
			summary: "What is known of a key: stored, buffered, rejected or unknown", query: []paramDoc{},
			statuses: map[int]string{200: "the state"}, codes: []string{"bad_row_key", "bad_column", "bad_ref_key"}}},
		{method: http.MethodGet, path: "/v1/{ds}/cells/{row_key}/{column}", id: "getColumn", handle: a.getColumn, doc: routeDoc{
			summary:  "The newest cell of a row's column, or with versions=all its history by ref_key",
			query:    []paramDoc{readParam, {"versions", "all: a page of the column's history"}, limitParam, cursorParam},
			statuses: map[int]string{200: "the newest cell's JSON, or a page of cells", 304: "If-None-Match names its ETag"},
			codes:    []string{"bad_row_key", "bad_column", "bad_cursor", "not_found"}}},
		{method: http.MethodGet, path: "/v1/{ds}/cells/{row_key}", id: "getRow", handle: a.getRow, doc: routeDoc{
			summary:  "The newest cell of each column of a row, or with versions=all every version, by column and ref_key",
			query:    []paramDoc{readParam, {"versions", "all: every version"}, limitParam, cursorParam},
			statuses: list, codes: []string{"bad_row_key", "bad_cursor"}}},
		{method: http.MethodPost, path: "/v1/{ds}/cells", id: "putCells", handle: a.putBatch, doc: routeDoc{
			summary: "Store many cells, each by itself", query: []paramDoc{}, body: `items {"row_key","column","ref_key","body"}, as a JSON array or one a line`, media: batch,
			statuses: map[int]string{200: "one result per cell, in the same order, each with its own status"},
			codes:    []string{"bad_batch", "batch_too_large", "too_many_cells", "unsupported_media_type", "overloaded"}}},
		{method: http.MethodPost, path: "/v1/{ds}/cells/get", id: "getCells", handle: a.getBatch, doc: routeDoc{
			summary: "Read many cells", query: []paramDoc{readParam}, body: `an array of {"row_key","column"} for the newest cell, with "ref_key" for one version`, media: js,
			statuses: map[int]string{200: "one result per item, in the same order, each with its own status"},
			codes:    []string{"bad_batch", "batch_too_large", "too_many_cells", "unsupported_media_type"}}},
		{method: http.MethodGet, path: "/v1/{ds}/log/{shard}", id: "getLog", handle: a.getLog, doc: routeDoc{
			summary: "A shard's log in added_id order, up to what is final",
			query: []paramDoc{{"after", "the added_id behind which to begin, default 0"}, {"since", "instead: the time from which on to read"},
				{"column", "only this column"}, limitParam, {"provisional", "1: also what is not final yet"}, readParam},
			statuses: list, codes: []string{"bad_shard", "unknown_shard", "bad_column", "final_unknown"}}},
		{method: http.MethodGet, path: "/v1/{ds}/columns/{column}/events", id: "getEvents", handle: a.getEvents, doc: routeDoc{
			summary: "The final cells of a column as they come: server-sent events, or a long poll",
			query: []paramDoc{{"since", "zero, latest (default), or a cursor: an event's id or a page's next"},
				{"shards", "such as 0-3,7; default all"}, limitParam},
			statuses: map[int]string{200: "text/event-stream if that is accepted, else a page of cells"}, codes: []string{"bad_column", "bad_cursor", "final_unknown"}}},
		{method: http.MethodGet, path: "/v1/{ds}/indexes/{index}", id: "queryIndex", handle: a.queryIndex, doc: routeDoc{
			summary:  "Rows of a secondary index: field=v, field.ne=, .lt=, .lte=, .gt=, .gte=, .in=a,b",
			statuses: map[int]string{200: "a page of index entries"}, codes: []string{"unknown_index", "no_indexes"}}},
		{method: http.MethodGet, path: "/v1/{ds}/rejected", id: "getRejected", handle: a.getRejected, doc: routeDoc{
			summary:  "Cells that were answered 202 and then lost to another body, or were refused: both bodies, and where the winner is",
			query:    []paramDoc{{"after", "the next of the page before"}, limitParam},
			statuses: map[int]string{200: "a page of rejected cells; next is the place behind it, now or later"}, codes: []string{"bad_cursor"}}},
		{method: http.MethodGet, path: "/v1/{ds}/buffered", id: "getBuffered", handle: a.getBuffered, doc: routeDoc{
			summary: "How many cells wait for their shard's primary, by shard and server; each is on two servers", query: []paramDoc{},
			statuses: map[int]string{200: "the counts, empty when all is well"}}},
		{method: http.MethodPost, path: "/internal/cells/{ds}", id: "forwardedCells", handle: a.takeForwarded, internal: true, doc: routeDoc{query: []paramDoc{}}},
		{method: http.MethodGet, path: "/openapi.json", id: "getOpenAPI", handle: a.getOpenAPI, doc: routeDoc{
			summary: "This description", query: []paramDoc{}, statuses: map[int]string{200: "OpenAPI 3.1"}}},
	}
	for i := range routes {
		rt := &routes[i]
		rt.segments = strings.Split(strings.TrimPrefix(rt.path, "/"), "/")
		if rt.doc.query != nil {
			rt.params = map[string]bool{}
			for _, p := range rt.doc.query {
				rt.params[p.name] = true
			}
		}
	}
	return routes
}

func (a *API) getOpenAPI(w http.ResponseWriter, _ *http.Request, _ vars) error {
	writeJSON(w, http.StatusOK, a.openapi)
	return nil
}
