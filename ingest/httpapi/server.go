package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server serves an API on an address.
type Server struct {
	api  *API
	addr string

	mu     sync.Mutex
	srv    *http.Server
	ln     net.Listener
	done   chan struct{}
	failed chan error
}

// NewServer makes a server for host:port; port 0 takes a free one.
func NewServer(api *API, addr string) *Server {
	return &Server{api: api, addr: addr, done: make(chan struct{}), failed: make(chan error, 1)}
}

// Start listens and serves in the background; it returns when requests are
// taken. Starting twice is safe.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srv != nil {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("ingest/httpapi: listen on %s: %w", s.addr, err)
	}
	s.ln = ln
	s.srv = &http.Server{
		Handler:           s.api,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		// Ours answers with a problem document; this is the last resort.
		MaxHeaderBytes: 1 << 20,
		ErrorLog:       log.New(discard{}, "", 0),
	}
	go func() {
		defer close(s.done)
		if err := s.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("ingest/httpapi: serve %s: %w", s.addr, err)
		}
	}()
	return nil
}

// Addr returns the address that is listened on, or "" before Start.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ln == nil {
		return ""
	}
	return s.ln.Addr().String()
}

// Failed gets the error of a server that stopped by itself.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop takes no new requests, ends the streams of events, and waits for the
// requests in flight until ctx is done; then it cuts them off, which is no
// error: a client that dawdles must not decide how a worker ends. Stopping
// twice is safe.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	srv := s.srv
	s.mu.Unlock()
	if srv == nil {
		return nil
	}
	s.api.Close()
	err := srv.Shutdown(ctx)
	if err != nil && ctx.Err() != nil {
		err = srv.Close()
	}
	<-s.done
	return err
}

// discard drops net/http's own log: it repeats what clients do wrong.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
