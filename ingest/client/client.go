package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/away"
)

// maxAnswer bounds what is read of one answer: a page of the largest bodies.
const maxAnswer = 1 << 30

// Config configures a Client.
type Config struct {
	// URLs are the workers' base URLs, such as http://127.0.0.1:8080. At
	// least one.
	URLs []string
	// Shards gives datastores' numbers of shards, for sending all puts of a
	// shard to one worker; default none: spread by row.
	Shards map[string]int
	// Budget is how long one call may go on retrying in all. Default 30s; a
	// negative one means no retries.
	Budget time.Duration
	// AttemptTimeout bounds one attempt. Default 15s.
	AttemptTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait before a retry, which doubles
	// from one to the other and is drawn evenly from its upper half. Defaults
	// 10ms and 1s.
	MinBackoff, MaxBackoff time.Duration
	// Transport carries the requests; nil means one with a pool that fits
	// many concurrent callers.
	Transport http.RoundTripper
}

// Client talks to the workers of one cellog.
type Client struct {
	cfg     Config
	workers []*worker
	http    *http.Client
	own     *http.Transport
}

// slow is how long an attempt may take, when the caller's own time was up, and
// not count as a worker's silence.
const slow = time.Second

// worker is a worker's base URL, and how it did lately: a silent one is asked
// last, so that one that is frozen or cut off costs few calls their timeout.
type worker struct {
	base string
	away away.Mark
}

// New returns a Client; it does not connect yet.
func New(cfg Config) (*Client, error) {
	if len(cfg.URLs) == 0 {
		return nil, errors.New("client: URLs is empty: want at least one base URL such as http://127.0.0.1:8080")
	}
	c := &Client{cfg: cfg}
	for i, u := range cfg.URLs {
		parsed, err := url.Parse(u)
		if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
			return nil, fmt.Errorf("client: URLs[%d]: %.80q: want http://HOST:PORT", i, u)
		}
		c.workers = append(c.workers, &worker{base: strings.TrimRight(u, "/")})
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.cfg.Budget, 30*time.Second)
	def(&c.cfg.AttemptTimeout, 15*time.Second)
	def(&c.cfg.MinBackoff, 10*time.Millisecond)
	def(&c.cfg.MaxBackoff, time.Second)
	rt := cfg.Transport
	if rt == nil {
		// The default pool keeps two idle connections per host: 256 writers
		// would open a new one for almost every put.
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 4096
		t.DisableCompression = true
		c.own, rt = t, t
	}
	c.http = &http.Client{Transport: rt}
	return c, nil
}

// Close closes idle connections. Calls may still be made afterwards.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// request is one call, sent as often as it takes.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte
	affinity     uint32 // which worker comes first
	write        bool   // an attempt without an answer may have stored cells
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request until it is answered finally. Answers below 400 have a
// nil error; a final 4xx or 5xx has both the answer and its *Problem.
func (c *Client) do(ctx context.Context, r request) (*answer, error) {
	stop := time.Now().Add(c.cfg.Budget)
	order := c.order(r.affinity)
	backoff := c.cfg.MinBackoff
	unknown := false
	fail := func(a *answer, err error) (*answer, error) {
		if unknown && r.write {
			err = &UnknownError{Last: err}
		}
		return a, err
	}
	for try := 0; ; try++ {
		w, asked := order[try%len(order)], time.Now()
		a, sent, err := c.attempt(ctx, w.base, r)
		if err == nil {
			w.away.Answered()
		} else if ctx.Err() == nil || time.Since(asked) >= slow {
			w.away.Silent(time.Now())
		}
		wait := backoff/2 + rand.N(backoff/2+1)
		switch {
		case err != nil:
			unknown = unknown || sent
			if ctx.Err() != nil {
				return fail(nil, err)
			}
		case a.status < 400:
			return a, nil
		default:
			p := problemOf(a.status, a.header.Get("Content-Type"), a.body)
			again, u := retryable(a.status)
			unknown = unknown || u
			err = p
			if a.status == http.StatusConflict {
				return a, err // what stands is known, whatever came before
			}
			if !again {
				return fail(a, err)
			}
			if s, e := strconv.Atoi(a.header.Get("Retry-After")); e == nil && s > 0 && s <= 60 {
				wait = max(wait, time.Duration(s)*time.Second)
			}
		}
		// Another worker may be well: try each of them once before waiting.
		if (try+1)%len(order) != 0 {
			wait = 0
		} else {
			backoff = min(2*backoff, c.cfg.MaxBackoff)
		}
		if time.Now().Add(wait).After(stop) {
			return fail(a, fmt.Errorf("after %d attempts: %w", try+1, err))
		}
		if wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return fail(a, fmt.Errorf("%w (last: %w)", ctx.Err(), err))
			case <-t.C:
			}
		}
	}
}

// attempt sends a request once. sent says that a worker may have acted on it
// although no answer came.
func (c *Client) attempt(ctx context.Context, base string, r request) (a *answer, sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	target := base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, false, err
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// A connection that could not be made carried nothing.
		return nil, !isDialError(err), err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, true, fmt.Errorf("reading the answer of %s: %w", base, err)
	}
	if len(body) > maxAnswer {
		return nil, true, fmt.Errorf("the answer of %s is larger than %d bytes", base, maxAnswer)
	}
	return &answer{resp.StatusCode, resp.Header, body}, true, nil
}

// order lists the workers, the preferred one first (rendezvous hashing: when a
// worker comes or goes only its own share moves), those that were silent last.
func (c *Client) order(affinity uint32) []*worker {
	if len(c.workers) == 1 {
		return c.workers
	}
	type scored struct {
		*worker
		last  bool
		score uint32
	}
	all, now := make([]scored, len(c.workers)), time.Now()
	for i, w := range c.workers {
		all[i] = scored{w, w.away.Is(now), uint32(cellog.Murmur2([]byte(w.base + "#" + strconv.FormatUint(uint64(affinity), 10))))}
	}
	sort.Slice(all, func(i, j int) bool {
		if all[i].last != all[j].last {
			return all[j].last
		}
		return all[i].score > all[j].score
	})
	out := make([]*worker, len(all))
	for i, s := range all {
		out[i] = s.worker
	}
	return out
}

// affinity is the shard of a row, or its hash where the shards are unknown.
func (c *Client) affinity(datastore string, k cellog.Key) uint32 {
	if n := c.cfg.Shards[datastore]; n > 0 {
		return uint32(cellog.ShardOf(k.Row, n))
	}
	return uint32(cellog.Murmur2(k.Row[:]))
}

// isDialError reports that no connection was made, so that nothing was sent.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
