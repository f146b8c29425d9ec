package obs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// CheckTimeout is how long a readiness check may take before it counts as
// failed.
const CheckTimeout = 2 * time.Second

// Registerer takes metrics; it is Prometheus's.
type Registerer = prometheus.Registerer

// Check says whether a part can do its work now; it returns nil or why not. It
// must obey its context. It may be called concurrently.
type Check func(ctx context.Context) error

// Config configures an Admin server.
type Config struct {
	// Listen is HOST:PORT; port 0 takes a free one. Required.
	Listen string
	// PProf also serves /debug/pprof/. Default false.
	PProf bool
	// Log receives the server's own failures; nil discards them.
	Log *slog.Logger
	// CheckTimeout bounds each readiness check; zero means CheckTimeout.
	CheckTimeout time.Duration
}

// Admin serves health and metrics of a process.
type Admin struct {
	cfg      Config
	registry *prometheus.Registry
	err      chan error

	mu      sync.Mutex // guards what follows
	checks  map[string]Check
	server  *http.Server
	addr    string
	stopped bool
	done    chan struct{} // closed when the serving goroutine has ended
}

// New returns an Admin server that does not listen yet; its registry already
// has the metrics of the Go runtime and of the process.
func New(cfg Config) (*Admin, error) {
	if cfg.Listen == "" {
		return nil, errors.New("obs: Listen is empty: want HOST:PORT")
	}
	if cfg.Log == nil {
		cfg.Log = Discard()
	}
	if cfg.CheckTimeout == 0 {
		cfg.CheckTimeout = CheckTimeout
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Admin{cfg: cfg, registry: r, err: make(chan error, 1), checks: map[string]Check{}}, nil
}

// Registry is where the parts of the process register their metrics.
func (a *Admin) Registry() *prometheus.Registry { return a.registry }

// AddCheck adds a readiness check, or replaces the one of that name.
func (a *Admin) AddCheck(name string, c Check) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checks[name] = c
}

// Start listens and returns when requests are answered. A second call does
// nothing; a call after Stop is an error.
func (a *Admin) Start(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return errors.New("obs: the admin server was stopped; make a new one")
	}
	if a.server != nil {
		return nil
	}
	l, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return fmt.Errorf("admin server (admin.listen): %w", err)
	}
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	a.server, a.addr, a.done = server, l.Addr().String(), done
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.cfg.Log.Error("admin server ended", "error", err)
			a.err <- err
		}
	}()
	return nil
}

// Addr returns the address that it listens on, empty before Start.
func (a *Admin) Addr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addr
}

// Err gets the error with which serving ended, if it did so by itself.
func (a *Admin) Err() <-chan error { return a.err }

// Stop ends the server; requests in flight may finish until ctx ends. It is
// safe before Start and twice.
func (a *Admin) Stop(ctx context.Context) error {
	a.mu.Lock()
	server, done := a.server, a.done
	a.stopped = true
	a.mu.Unlock()
	if server == nil {
		return nil
	}
	err := server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	<-done
	return err
}

func (a *Admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
	if a.cfg.PProf {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

type checkResult struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// RunChecks runs every check and returns the names of those that fail with
// their errors.
func (a *Admin) RunChecks(ctx context.Context) map[string]error {
	failed := map[string]error{}
	for _, r := range a.runChecks(ctx) {
		if !r.OK {
			failed[r.Name] = errors.New(r.Error)
		}
	}
	return failed
}

func (a *Admin) runChecks(ctx context.Context) []checkResult {
	a.mu.Lock()
	results := make([]checkResult, 0, len(a.checks))
	checks := make([]Check, 0, len(a.checks))
	for name := range a.checks {
		results = append(results, checkResult{Name: name})
	}
	sort.Slice(results, func(i, j int) bool { return results[i].Name < results[j].Name })
	for _, r := range results {
		checks = append(checks, a.checks[r.Name])
	}
	a.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, a.cfg.CheckTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() {
			if err := c(ctx); err != nil {
				results[i].Error = err.Error()
				return
			}
			results[i].OK = true
		})
	}
	wg.Wait()
	return results
}

func (a *Admin) ready(w http.ResponseWriter, r *http.Request) {
	results := a.runChecks(r.Context())
	ok := true
	for _, c := range results {
		ok = ok && c.OK
	}
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	if r.URL.Query().Get("format") == "json" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"ready": ok, "checks": results}) // the client is gone: nobody to tell
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, verbose := r.URL.Query()["verbose"]
	for _, c := range results {
		switch {
		case !c.OK:
			fmt.Fprintf(w, "[-] %s: %s\n", c.Name, c.Error)
		case verbose:
			fmt.Fprintf(w, "[+] %s\n", c.Name)
		}
	}
	if ok {
		fmt.Fprintln(w, "ok")
	}
}
