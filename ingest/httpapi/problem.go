package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/cellog/cellog/schemas/body"
)

// problem is an RFC 9457 problem document. place is set where a cell stands.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   string `json:"code"`
	*place
}

// codeInfo is what the table knows of a code.
type codeInfo struct {
	status int
	title  string
}

// codes are all codes that an answer can carry. docs/errors.md lists them; a
// test compares the two.
var codes = map[string]codeInfo{
	"bad_request":            {400, "The request is malformed"},
	"bad_datastore":          {400, "The datastore's name is not legal"},
	"bad_row_key":            {400, "The row_key is not a UUID"},
	"bad_column":             {400, "The column's name is not legal"},
	"bad_ref_key":            {400, "The ref_key is not a 64-bit integer"},
	"bad_shard":              {400, "The shard is not a number"},
	"bad_parameter":          {400, "A query parameter is unknown or has an illegal value"},
	"bad_cursor":             {400, "The cursor is not one that this list gave"},
	"bad_token":              {400, "The token is not one that a put answered"},
	"bad_traceparent":        {400, "The traceparent is not a W3C trace context"},
	"bad_encoding":           {400, "The body does not inflate"},
	"bad_batch":              {400, "The batch is not a JSON array, or lines, of items"},
	"bad_item":               {400, "The item of the batch is malformed"},
	"incomplete_body":        {400, "The body ended early"},
	body.CodeEmpty:           {400, "The body is empty"},
	body.CodeInvalidJSON:     {400, "The body is not JSON"},
	body.CodeDuplicateKey:    {400, "An object in the body has a key twice"},
	body.CodeInvalidUTF8:     {400, "The body is not UTF-8"},
	body.CodeTooDeep:         {400, "The body nests too deep"},
	"missing_shard_field":    {400, "The index query does not name the shard field by equality"},
	"unknown_parameter":      {400, "The index query has a parameter that is no field"},
	"bad_filter":             {400, "A filter of the index query has an illegal value or operator"},
	"bad_select":             {400, "The index query asks for fields or columns that there are not"},
	"bad_limit":              {400, "The limit of the index query is not legal"},
	"bad_read":               {400, "The read of the index query is neither master nor minion"},
	"unknown_route":          {404, "There is nothing at this path"},
	"unknown_datastore":      {404, "There is no such datastore"},
	"unknown_shard":          {404, "The datastore has no such shard"},
	"unknown_index":          {404, "The datastore has no such index"},
	"not_found":              {404, "There is no such cell"},
	"method_not_allowed":     {405, "The path does not take this method"},
	"body_timeout":           {408, "The body did not arrive in time"},
	"conflict":               {409, "Another body stands under this key"},
	body.CodeTooLarge:        {413, "The body is too large"},
	"batch_too_large":        {413, "The batch is too large"},
	"too_many_cells":         {413, "The batch has too many cells"},
	"answer_too_large":       {413, "The answer has no room for this cell"},
	"uri_too_long":           {414, "The URL is too long"},
	"unsupported_media_type": {415, "The content type is not supported"},
	"unsupported_encoding":   {415, "The content encoding is not supported"},
	"misdirected":            {421, "The request is for another worker"},
	"column_limit":           {422, "The storage cluster has as many columns as it may"},
	"overloaded":             {429, "Too much is queued, nothing was kept"},
	"headers_too_large":      {431, "The header fields are too large"},
	"internal":               {500, "A fault in cellog"},
	"damaged":                {500, "Stored data is damaged"},
	body.CodeCorrupt:         {500, "The stored body is damaged"},
	body.CodeUnknownFormat:   {500, "The stored body is of a format that this version does not know"},
	"unavailable":            {503, "Storage is unavailable, nothing was kept"},
	"stopping":               {503, "This worker is stopping, nothing was kept"},
	"deadline":               {503, "The time was up, nothing was kept"},
	"final_unknown":          {503, "This worker does not know yet what is final"},
	"index_not_made":         {503, "The index has no tables yet"},
	"no_indexes":             {503, "This worker serves no indexes"},
	"outcome_unknown":        {504, "The outcome is unknown, put the same cell again"},
}

// failure is an error of this package: a code and words for the client.
type failure struct{ code, detail string }

func (f *failure) Error() string { return f.code + ": " + f.detail }
func (f *failure) Code() string  { return f.code }

func fail(code, detail string) error { return &failure{code, detail} }

// coder is an error with a stable code. Errors of storage, ingest and the
// index queries have one.
type coder interface {
	error
	Code() string
}

// problemOf turns any error into a problem document. Only words that were made
// for clients are shown: the detail of a 5xx stays in the log.
func problemOf(err error) *problem {
	code, detail := "internal", ""
	var b *body.Error
	var c coder
	var f *failure
	switch {
	case errors.As(err, &b):
		code, detail = b.Code, b.Error()
		if b.Pointer != "" {
			detail += ", at " + b.Pointer
		}
	case errors.As(err, &f):
		code, detail = f.code, f.detail
	case errors.As(err, &c):
		code, detail = c.Code(), err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = "deadline"
	}
	info, ok := codes[code]
	if !ok {
		info, ok = statusOf(c, code)
		if !ok {
			code, detail, info = "internal", "", codes["internal"]
		}
	}
	if info.status >= 500 && f == nil {
		detail = ""
	}
	return &problem{Type: "about:blank", Title: info.title, Status: info.status, Detail: detail, Code: code}
}

// statusOf asks an error of another part, whose code is not in the table, for
// its status.
func statusOf(c coder, code string) (codeInfo, bool) {
	s, ok := c.(interface{ Status() int })
	if !ok || s.Status() < 400 || s.Status() > 599 {
		return codeInfo{}, false
	}
	return codeInfo{s.Status(), code}, true
}

func (a *API) writeError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= 500 && r.Context().Err() == nil { // else the client has gone, and nobody failed
		a.cfg.Logger.Error("request failed", "method", r.Method, "route", routeOf(r), "code", p.Code, "error", err)
	}
	var na *notAllowed
	if errors.As(err, &na) {
		w.Header().Set("Allow", strings.Join(na.methods, ", "))
	}
	writeProblem(w, p)
}

func writeProblem(w http.ResponseWriter, p *problem) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	text, err := json.Marshal(p)
	if err != nil {
		text = []byte(`{"type":"about:blank","status":500,"code":"internal"}`)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(text, '\n')) // the client may have gone; nobody is left to tell
}
