package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxHeader bounds the header fields of a request.
	maxHeader = 64 << 10
	// maxURL bounds a request's URL; a cursor over thousands of shards fits.
	maxURL = 128 << 10
)

// API is the HTTP handler of a worker. It holds no goroutines.
type API struct {
	cfg     Config
	metrics *metrics
	routes  []route
	openapi []byte
	bytes   atomic.Int64 // of request bodies in memory
	stop    context.Context
	cancel  context.CancelFunc
}

// New checks the configuration and returns a handler.
func New(cfg Config) (*API, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	a := &API{cfg: cfg, metrics: newMetrics(cfg.Registerer)}
	a.routes = a.table()
	var err error
	if a.openapi, err = describe(a.routes); err != nil {
		return nil, fmt.Errorf("ingest/httpapi: openapi: %w", err)
	}
	a.stop, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Close ends the streams of events, so that a server can shut down.
func (a *API) Close() { a.cancel() }

// OpenAPI returns the OpenAPI 3.1 document, JSON.
func (a *API) OpenAPI() []byte { return a.openapi }

// vars are the variables of a path.
type vars map[string]string

// handler does the work of a route. A returned error is answered as a problem.
type handler func(w http.ResponseWriter, r *http.Request, v vars) error

// route is a row of the table from which requests are routed and the OpenAPI
// document is made.
type route struct {
	method string
	path   string // segments in braces are variables
	id     string // operation id, and the name in metrics
	doc    routeDoc
	handle handler
	// internal routes are for other workers and not in the OpenAPI document.
	internal bool

	segments []string
	params   map[string]bool // query parameters that are allowed; nil: any
}

type routeKey struct{}

// routeOf returns the operation id under which a request is served.
func routeOf(r *http.Request) string {
	if s, ok := r.Context().Value(routeKey{}).(string); ok {
		return s
	}
	return "none"
}

// ServeHTTP serves one request. It never panics, except to abort an answer
// that has begun.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	sw := &statusWriter{ResponseWriter: w}
	rt, v, err := a.match(r)
	id := "none"
	if rt != nil {
		id = rt.id
		r = r.WithContext(context.WithValue(r.Context(), routeKey{}, id))
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			a.cfg.Logger.Error("handler panicked", "method", r.Method, "route", id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if sw.status != 0 {
				panic(http.ErrAbortHandler) // half an answer must not look whole
			}
			writeProblem(sw, problemOf(fail("internal", "")))
		}
		a.metrics.observe(id, sw.status, time.Since(start))
	}()
	if err == nil {
		err = rt.handle(sw, r, v)
	} else {
		a.drain(w, r)
	}
	if err != nil {
		if sw.status != 0 {
			panic(http.ErrAbortHandler)
		}
		a.writeError(sw, r, err)
	}
}

// match finds the route of a request and checks what all routes check.
func (a *API) match(r *http.Request) (*route, vars, error) {
	if len(r.RequestURI) > maxURL {
		return nil, nil, fail("uri_too_long", fmt.Sprintf("the URL has %d bytes, at most %d are taken", len(r.RequestURI), maxURL))
	}
	size := 0
	for k, vs := range r.Header {
		for _, v := range vs {
			size += len(k) + len(v) + 4
		}
	}
	if size > maxHeader {
		return nil, nil, fail("headers_too_large", fmt.Sprintf("the header fields have %d bytes, at most %d are taken", size, maxHeader))
	}
	segments := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	var allowed []string
	for i := range a.routes {
		rt := &a.routes[i]
		if !rt.matches(segments) {
			continue
		}
		if rt.method != r.Method && !(r.Method == http.MethodHead && rt.method == http.MethodGet) {
			allowed = append(allowed, rt.method)
			continue
		}
		v, ok := rt.vars(segments)
		if !ok {
			continue
		}
		if err := rt.checkQuery(r.URL); err != nil {
			return rt, nil, err
		}
		return rt, v, nil
	}
	if allowed != nil {
		return nil, nil, &notAllowed{allowed}
	}
	return nil, nil, fail("unknown_route", "see /openapi.json for the paths")
}

// notAllowed is a failure that also sets the Allow header.
type notAllowed struct{ methods []string }

func (e *notAllowed) Error() string { return "this path takes " + strings.Join(e.methods, ", ") }
func (e *notAllowed) Code() string  { return "method_not_allowed" }

func (rt *route) matches(segments []string) bool {
	if len(segments) != len(rt.segments) {
		return false
	}
	for i, s := range rt.segments {
		if s[0] != '{' && s != segments[i] || segments[i] == "" {
			return false
		}
	}
	return true
}

// vars returns the variables of a path that matches; false if one is not
// escaped properly.
func (rt *route) vars(segments []string) (vars, bool) {
	v := vars{}
	for i, s := range rt.segments {
		if s[0] == '{' {
			text, err := url.PathUnescape(segments[i])
			if err != nil {
				return nil, false
			}
			v[s[1:len(s)-1]] = text
		}
	}
	return v, true
}

// checkQuery refuses parameters that the route does not know, and double ones:
// a typo must not be silent.
func (rt *route) checkQuery(u *url.URL) error {
	if u.RawQuery == "" {
		return nil
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("bad_parameter", "the query string is malformed")
	}
	if rt.params == nil {
		return nil
	}
	for k, vs := range q {
		if !rt.params[k] {
			return fail("bad_parameter", fmt.Sprintf("%.80q is not a parameter of this path", k))
		}
		if len(vs) > 1 {
			return fail("bad_parameter", fmt.Sprintf("%s is there %d times", k, len(vs)))
		}
	}
	return nil
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap gives http.ResponseController the writer below.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
