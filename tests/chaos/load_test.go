package chaos

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/acks"
	"github.com/cellog/cellog/tests/harness"
)

// clients is how many put cells at a time.
const clients = 16

// load is the clients, which put cells, one attempt each, and journal every
// answer outside of the system.
type load struct {
	t       *testing.T
	urls    []string
	file    string
	journal *acks.Journal
	stop    chan struct{}
	wg      sync.WaitGroup
	owners  *owners
	pace    time.Duration // between the puts of a client

	mu       sync.Mutex
	statuses map[int]int
	outcast  outcast
	stored   []int       // by cluster: puts answered 201 or 200
	last     []time.Time // by cluster: the last 201 or 200
	lastAny  []time.Time // the last 202 or those
	worst    gaps
	failures failures
}

// outcast is a worker that must earn no 201 any more for a cluster's cells.
type outcast struct {
	url           string
	cluster       int
	since         time.Time
	tried, earned int
}

// gaps are the longest times in which no put to one of the clusters succeeded:
// was answered 201 or 200, or was answered at all with success; and how many puts
// failed: were answered 429 or 5xx, or not at all.
type gaps struct {
	noCreated, noSuccess time.Duration
	failed               int
}

func (g gaps) String() string {
	return fmt.Sprintf("no 201 %v, no 2xx %v, %d failed", g.noCreated.Round(10*time.Millisecond), g.noSuccess.Round(10*time.Millisecond), g.failed)
}

// longest has the longest times of both, and all that failed.
func (g gaps) longest(o gaps) gaps {
	return gaps{max(g.noCreated, o.noCreated), max(g.noSuccess, o.noSuccess), g.failed + o.failed}
}

func (g gaps) plus(o gaps) gaps {
	return gaps{g.noCreated + o.noCreated, g.noSuccess + o.noSuccess, g.failed + o.failed}
}

// newLoad starts the clients.
func newLoad(t *testing.T, r *rig, seed uint64, pace time.Duration) *load {
	t.Helper()
	l := &load{t: t, pace: pace, owners: r.owners, file: filepath.Join(r.dir, "answers.jsonl"), stop: make(chan struct{}), statuses: map[int]int{},
		stored: make([]int, len(minions)), last: make([]time.Time, len(minions)), lastAny: make([]time.Time, len(minions))}
	for _, w := range r.role("worker") {
		l.urls = append(l.urls, w.url)
	}
	var err error
	if l.journal, err = acks.Create(l.file); err != nil {
		t.Fatal(err)
	}
	l.measure()
	for i := range uint64(clients) {
		l.wg.Go(func() { l.client(rand.New(rand.NewPCG(seed, 100+i)), l.urls[i%uint64(len(l.urls))]) })
	}
	t.Cleanup(l.end)
	return l
}

// end stops the clients; twice is fine.
func (l *load) end() {
	select {
	case <-l.stop:
		return
	default:
	}
	close(l.stop)
	l.wg.Wait()
	if err := l.journal.Close(); err != nil {
		l.t.Error(err)
	}
}

// client puts cells, all to one worker: one that is frozen must not take all
// clients with it. Some are put again, and some meet another body under their
// key.
func (l *load) client(rng *rand.Rand, url string) {
	h := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer h.CloseIdleConnections()
	var recent []acks.Answer
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		var a acks.Answer
		switch n := rng.IntN(20); {
		case n < 2 && len(recent) > 0:
			a = recent[rng.IntN(len(recent))]
		case n < 4 && len(recent) > 0:
			a = recent[rng.IntN(len(recent))]
			a.Body = fmt.Appendf(nil, `{"total":%d,"rival":true}`, rng.IntN(1000))
		default:
			a = newCell(rng)
		}
		began := time.Now()
		var why string
		a.Status, why = tried(h, url, a)
		if err := l.journal.Append(a); err != nil {
			l.t.Error(err)
			return
		}
		if recent = append(recent, a); len(recent) > 50 {
			recent = recent[1:]
		}
		l.note(a, url, began, why)
		if a.Status == 0 {
			time.Sleep(10 * time.Millisecond) // nobody listens there now
		}
		time.Sleep(l.pace)
	}
}

func newCell(rng *rand.Rand) (a acks.Answer) {
	var row uuid.UUID
	for i := range row {
		row[i] = byte(rng.Uint32())
	}
	a.Key = cellog.Key{Row: row, Column: columns[rng.IntN(len(columns))], Ref: cellog.RefKey(rng.IntN(3))}
	a.Body = fmt.Appendf(nil, `{"payment":"cash","total":%d.25,"pickup_zone":"zone %d"}`, rng.IntN(1000), rng.IntN(50))
	return a
}

func (l *load) note(a acks.Answer, url string, began time.Time, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[a.Status]++
	c, now := l.owners.clusterOf(a.Key.Row), time.Now()
	if o := &l.outcast; o.url == url && o.cluster == c && began.After(o.since) {
		o.tried++
		if a.Status == 201 {
			o.earned++
		}
	}
	switch a.Status {
	case 200, 201:
		l.stored[c]++
		l.worst.noCreated = max(l.worst.noCreated, now.Sub(l.last[c]))
		l.last[c] = now
	case 202:
	case 409: // a rival's body, as is right
		return
	default:
		l.worst.failed++
		l.failures.note(a.Status, why, c, began, now)
		return
	}
	l.worst.noSuccess = max(l.worst.noSuccess, now.Sub(l.lastAny[c]))
	l.lastAny[c] = now
}

// castOut watches what a worker earns from now on for a cluster's cells.
func (l *load) castOut(url string, cluster int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcast = outcast{url: url, cluster: cluster, since: time.Now()}
}

// takeBack ends that, and returns what it was.
func (l *load) takeBack() outcast {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.outcast
	l.outcast = outcast{}
	return o
}

// measure starts to measure gaps.
func (l *load) measure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for c := range minions {
		l.last[c], l.lastAny[c] = now, now
	}
	l.worst, l.failures = gaps{}, failures{since: now}
}

// measured returns the gaps since measure, and the puts that failed.
func (l *load) measured() (gaps, failures) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.failures
	f.kinds = slices.Clone(f.kinds)
	return l.worst, f
}

// calm waits until each cluster, or each of those, has answered so many puts
// with 201 or 200.
func (l *load) calm(puts int, only ...int) error {
	l.mu.Lock()
	from := append([]int(nil), l.stored...)
	l.mu.Unlock()
	return harness.Poll(l.t, 2*time.Minute, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range from {
			if n := l.stored[c] - from[c]; n < puts && (len(only) == 0 || slices.Contains(only, c)) {
				return fmt.Errorf("cluster c%d stored %d of %d cells since; all statuses: %v", c+1, n, puts, l.statuses)
			}
		}
		return nil
	})
}

// attempt puts a cell once and returns the status, 0 without an answer.
func attempt(h *http.Client, url string, a acks.Answer) int {
	status, _ := tried(h, url, a)
	return status
}

// tried is attempt that also returns what the answer said.
func tried(h *http.Client, url string, a acks.Answer) (status int, answer string) {
	req, err := http.NewRequest(http.MethodPut, fmt.Sprintf("%s/v1/trips/cells/%s/%s/%d", url, a.Key.Row, a.Key.Column, a.Key.Ref), bytes.NewReader(a.Body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}
