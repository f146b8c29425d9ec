package life

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/acks"
)

// chaosSeconds is how long faults are injected, unless CELLOG_CHAOS_SECONDS
// says otherwise.
const chaosSeconds = 30

// chaos is a cellog under faults, and the clients that write to it.
type chaos struct {
	t       *testing.T
	d       *dev
	config  string
	workers []*extra
	journal *acks.Journal
	urls    atomic.Pointer[[]string]
	stop    chan struct{}

	mu       sync.Mutex
	statuses map[int]int
	lastOK   time.Time
	dark     time.Duration // the longest time without a success since the last fault

	faults map[string]int
	worst  map[string]time.Duration // dark, by fault
}

// TestChaos injects seeded faults under load: servers and workers are frozen
// and killed, and everything at once. Then every answer that a client got must
// have been true: lost 0, doubled 0, reordered 0.
func TestChaos(t *testing.T) {
	seed := seedOf(t)
	seconds := chaosSeconds
	if s := os.Getenv("CELLOG_CHAOS_SECONDS"); s != "" {
		var err error
		if seconds, err = strconv.Atoi(s); err != nil || seconds < 1 {
			t.Fatalf("CELLOG_CHAOS_SECONDS=%q: want a positive number", s)
		}
	}
	t.Logf("for %d seconds (CELLOG_CHAOS_SECONDS)", seconds)
	rng := rand.New(rand.NewPCG(seed, 1))

	file := filepath.Join(t.TempDir(), "answers.jsonl")
	journal, err := acks.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	c := &chaos{t: t, d: newDev(t), journal: journal, stop: make(chan struct{}), statuses: map[int]int{}, faults: map[string]int{}, worst: map[string]time.Duration{}}
	var report struct {
		Cells, Records, Missing, Duplicates, Holes int
		OutOfOrder                                 int `json:"out_of_order"`
		Acks                                       acks.Report
	}
	defer func() { c.ledger(seed, seconds, report.Acks, report.Missing, report.Duplicates, report.OutOfOrder) }() // of a failed run, too
	c.up()
	var wg sync.WaitGroup
	for i := range uint64(16) {
		wg.Go(func() { c.client(rand.New(rand.NewPCG(seed, 100+i))) })
	}
	ended := sync.OnceFunc(func() { close(c.stop); wg.Wait() })
	defer ended()
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		c.calm(300 + rng.IntN(700))
		c.fault(rng)
	}
	c.calm(500)
	ended()
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}

	waitFor(t, 3*time.Minute, func() error {
		out, code := c.d.cellog(t, "verify", "trips", "--config", c.config, "--acks", file, "--format", "json")
		if err := json.Unmarshal([]byte(out), &report); code != 0 || err != nil {
			return fmt.Errorf("verify: exit %d: %s (%v)", code, out, err)
		}
		return nil
	})
	a := report.Acks
	if a.Acknowledged == 0 || a.Answers == 0 {
		t.Fatal("nothing was acknowledged: nothing was tested")
	}
	n := 0
	for _, k := range slices.Sorted(maps.Keys(c.faults)) {
		n += c.faults[k]
		t.Logf("%-16s %3d times, at most %v without a success", k, c.faults[k], c.worst[k].Round(time.Millisecond))
	}
	t.Logf("%d faults; %d cells acknowledged, %d accepted (%d rejected later); answers by status %v", n, a.Acknowledged, a.Accepted, a.Rejected, c.statuses)
	t.Logf("lost %d, doubled %d, reordered %d, holes %d, untrue answers %d", a.Lost+report.Missing, report.Duplicates, report.OutOfOrder, report.Holes, a.OtherBody+a.TwoBodies+a.Ghosts)
	if n == 0 {
		t.Error("no fault was injected")
	}
	c.checkTheChecker(file)
	c.d.stop(t)
}

// ledger appends the run to the file that CELLOG_CHAOS_LEDGER names.
func (c *chaos) ledger(seed uint64, seconds int, a acks.Report, missing, duplicates, reordered int) {
	c.t.Helper()
	file := os.Getenv("CELLOG_CHAOS_LEDGER")
	if file == "" {
		return
	}
	result := "ok"
	if c.t.Failed() {
		result = "FAIL"
	}
	var kinds []string
	faults := 0
	for _, k := range slices.Sorted(maps.Keys(c.faults)) {
		faults += c.faults[k]
		kinds = append(kinds, fmt.Sprintf("%s %d (%v)", k, c.faults[k], c.worst[k].Round(10*time.Millisecond)))
	}
	broker := "embedded"
	if os.Getenv("CELLOG_TEST_KAFKA") == "real" {
		broker = "kafka"
	}
	flavour := c.d.args[indexOf(c.d.args, "--mysql")+1]
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", time.Now().UTC().Format(time.RFC3339), os.Getenv("CELLOG_CHAOS_COMMIT"),
		flavour, broker, seed, seconds, faults, a.Acknowledged, a.Accepted, a.Rejected, a.Lost+missing, duplicates, reordered, result, strings.Join(kinds, ", ")); err != nil {
		c.t.Error(err)
	}
}

// checkTheChecker plants untrue answers, which must be found.
func (c *chaos) checkTheChecker(file string) {
	c.t.Helper()
	j, err := acks.Create(file)
	if err != nil {
		c.t.Fatal(err)
	}
	refused := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}
	cl := c.d.client(c.t)
	if _, err := cl.Put(c.t.Context(), "trips", cellog.Put{Key: refused, Body: []byte(`1`)}); err != nil {
		c.t.Fatal(err)
	}
	for _, a := range []acks.Answer{
		{Status: 201, Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: []byte(`1`)},
		{Status: 202, Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: []byte(`1`)},
		{Status: 503, Key: refused, Body: []byte(`1`)},
	} {
		if err := j.Append(a); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		c.t.Fatal(err)
	}
	var report struct{ Acks acks.Report }
	out, code := c.d.cellog(c.t, "verify", "trips", "--config", c.config, "--acks", file, "--format", "json")
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 3 || report.Acks.Lost != 2 || report.Acks.Ghosts != 1 {
		c.t.Errorf("three planted faults: exit %d, %s (%v)", code, out, err)
	}
}

// up starts what is down, and tells the clients where it is.
func (c *chaos) up() {
	c.t.Helper()
	if c.d.cmd == nil {
		c.d.start(c.t)
		c.config = c.d.config(c.t)
		for _, w := range c.workers {
			w.end()
		}
		c.workers = nil
	}
	for len(c.workers) < 2 {
		c.workers = append(c.workers, c.d.addWorker(c.t, c.config, len(c.workers)))
	}
	urls := []string{c.d.HTTP}
	for _, w := range c.workers {
		urls = append(urls, "http://"+w.http)
	}
	c.urls.Store(&urls)
}

// calm waits until so many puts have succeeded.
func (c *chaos) calm(puts int) {
	c.t.Helper()
	good := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.statuses[200] + c.statuses[201] + c.statuses[202]
	}
	from := good()
	waitFor(c.t, time.Minute, func() error {
		if n := good() - from; n < puts {
			c.mu.Lock()
			defer c.mu.Unlock()
			return fmt.Errorf("%d of %d puts succeeded since the last fault; all statuses: %v", n, puts, c.statuses)
		}
		return nil
	})
}

// server chooses a server of a role.
func (c *chaos) server(rng *rand.Rand, role string) int {
	var pids []int
	for _, cl := range c.d.Clusters {
		for _, n := range cl.Nodes {
			if n.Role == role {
				pids = append(pids, n.PID)
			}
		}
	}
	return pids[rng.IntN(len(pids))]
}

// fault injects one fault and heals it.
func (c *chaos) fault(rng *rand.Rand) {
	c.t.Helper()
	c.mu.Lock()
	c.lastOK, c.dark = time.Now(), 0
	c.mu.Unlock()
	kinds := []string{"freeze master", "freeze minion", "kill master", "kill minion", "freeze worker", "kill worker", "kill everything"}
	kind := kinds[rng.IntN(len(kinds))]
	length := time.Duration(1000+rng.IntN(3000)) * time.Millisecond
	c.t.Logf("%s", kind)
	what, role, _ := strings.Cut(kind, " ")
	freeze := func(pid int) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			c.t.Fatalf("%s %d: %v", kind, pid, err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // gone is as good
		time.Sleep(length)                                        // how long it is frozen, not a wait for anything
	}
	switch {
	case kind == "kill everything":
		c.d.kill(c.t)
		c.up()
	case role == "worker":
		i := rng.IntN(len(c.workers))
		if what == "freeze" {
			freeze(c.workers[i].cmd.Process.Pid)
			break
		}
		c.workers[i].end()
		c.workers = slices.Delete(c.workers, i, i+1)
		c.up()
	case what == "freeze":
		freeze(c.server(rng, role))
	default:
		pid := c.server(rng, role)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			c.t.Fatalf("%s %d: %v", kind, pid, err)
		}
		c.revived(pid)
	}
	c.calm(100)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[kind]++
	c.worst[kind] = max(c.worst[kind], c.dark)
}

// revived waits until cellog dev has started a killed server again, and learns
// its new process.
func (c *chaos) revived(pid int) {
	c.t.Helper()
	file := c.d.args[indexOf(c.d.args, "--ready-file")+1]
	waitFor(c.t, time.Minute, func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var now ready
		if err := json.Unmarshal(text, &now); err != nil {
			return err
		}
		for _, cl := range now.Clusters {
			for _, n := range cl.Nodes {
				if n.PID == pid {
					return fmt.Errorf("%s (%d) is not back", n.Name, pid)
				}
			}
		}
		c.d.ready = now
		return nil
	})
}

// client puts cells, one attempt each, and journals every answer. Some are put
// again, and some meet another body under their key.
func (c *chaos) client(rng *rand.Rand) {
	h := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer h.CloseIdleConnections()
	var recent []acks.Answer
	for {
		select {
		case <-c.stop:
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
			var row uuid.UUID
			for i := range row {
				row[i] = byte(rng.Uint32())
			}
			a.Key = cellog.Key{Row: row, Column: columns[rng.IntN(len(columns))], Ref: cellog.RefKey(rng.IntN(3))}
			a.Body = fmt.Appendf(nil, `{"payment":"cash","total":%d.25,"pickup_zone":"zone %d"}`, rng.IntN(1000), rng.IntN(50))
		}
		urls := *c.urls.Load()
		a.Status = attempt(h, urls[rng.IntN(len(urls))], a)
		if err := c.journal.Append(a); err != nil {
			c.t.Error(err)
			return
		}
		if recent = append(recent, a); len(recent) > 50 {
			recent = recent[1:]
		}
		c.note(a.Status)
		if a.Status == 0 {
			time.Sleep(10 * time.Millisecond) // nobody listens there now
		}
	}
}

func (c *chaos) note(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statuses[status]++
	if status == 200 || status == 201 || status == 202 {
		now := time.Now()
		c.dark = max(c.dark, now.Sub(c.lastOK))
		c.lastOK = now
	}
}

// attempt puts a cell once and returns the status, 0 without an answer.
func attempt(h *http.Client, url string, a acks.Answer) int {
	req, err := http.NewRequest(http.MethodPut, fmt.Sprintf("%s/v1/trips/cells/%s/%s/%d", url, a.Key.Row, a.Key.Column, a.Key.Ref), bytes.NewReader(a.Body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	return resp.StatusCode
}
