package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/tests/harness"
)

// chaosSeconds is how long faults are injected, unless CELLOG_CHAOS_SECONDS
// says otherwise.
const chaosSeconds = 30

// chaos is a cellog under faults, and the clients that write to it.
type chaos struct {
	t   *testing.T
	rng *rand.Rand
	r   *rig
	l   *load

	faults map[string]int
	worst  map[string]gaps
}

func newChaos(t *testing.T, seed uint64, b broken) *chaos {
	t.Helper()
	c := &chaos{t: t, rng: rand.New(rand.NewPCG(seed, 1)), faults: map[string]int{}, worst: map[string]gaps{}}
	c.r = newRig(t, b)
	c.l = newLoad(t, c.r, seed)
	if err := c.l.calm(50); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestChaos injects seeded faults under load, one after another. Then every
// answer that a client got must have been true.
func TestChaos(t *testing.T) {
	seed := harness.Seed(t)
	seconds := chaosSeconds
	if s := os.Getenv("CELLOG_CHAOS_SECONDS"); s != "" {
		var err error
		if seconds, err = strconv.Atoi(s); err != nil || seconds < 1 {
			t.Fatalf("CELLOG_CHAOS_SECONDS=%q: want a positive number", s)
		}
	}
	c := newChaos(t, seed, broken{})
	t.Logf("for %d seconds (CELLOG_CHAOS_SECONDS), replay with make chaos SEED=%d DURATION=%d", seconds, seed, seconds)
	var v verified
	defer func() { c.ledger(seed, seconds, v) }() // of a failed run, too

	var deck []fault
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end) && !t.Failed(); {
		if len(deck) == 0 {
			if deck = shuffled(c.rng, c.r); len(deck) == 0 {
				t.Fatal("no kind of fault is possible")
			}
		}
		c.inject(deck[0])
		deck = deck[1:]
	}
	c.l.end()
	v, findings := c.check(time.Minute)
	c.report(v)
	if v.Duplicates > 0 {
		c.twice()
	}
	for _, f := range findings {
		t.Error(f)
	}
	if v.Acks.Acknowledged == 0 {
		t.Error("nothing was acknowledged: nothing was tested")
	}
	if t.Failed() {
		return
	}
	c.checkTheChecker()
	for _, p := range slices.Backward(c.r.procs) { // the broker was first
		if err := p.stop(); err != nil {
			t.Errorf("%s after SIGTERM: %v", p.name, err)
		}
	}
}

// inject injects one fault, heals it, waits until both clusters store again, and
// notes for how long they did not.
func (c *chaos) inject(f fault) {
	c.t.Helper()
	length := time.Duration(1000+c.rng.IntN(2500)) * time.Millisecond
	if c.rng.IntN(6) == 0 {
		length += 8 * time.Second // beyond the time-outs of transactions and sessions
	}
	c.t.Logf("%s, for %v", f.kind, length)
	start := time.Now()
	c.l.measure()
	err := f.run(c, length)
	if calm := c.l.calm(20); err == nil {
		err = calm
	}
	if err != nil {
		c.t.Errorf("%s: %v", f.kind, err)
	}
	g := c.l.measured()
	c.t.Logf("  healed after %v; %v", time.Since(start).Round(100*time.Millisecond), g)
	c.faults[f.kind]++
	w := c.worst[f.kind]
	w.add(g)
	c.worst[f.kind] = w
}

func (c *chaos) injected() (n int) {
	for _, k := range c.faults {
		n += k
	}
	return n
}

// report prints what happened.
func (c *chaos) report(v verified) {
	c.t.Helper()
	for _, k := range slices.Sorted(maps.Keys(c.faults)) {
		c.t.Logf("%-28s %3d times; at most %v", k, c.faults[k], c.worst[k])
	}
	a := v.Acks
	c.t.Logf("%d faults; %d cells acknowledged, %d accepted (%d rejected later); answers by status %v", c.injected(), a.Acknowledged, a.Accepted, a.Rejected, c.l.statuses)
	c.t.Logf("lost %d, doubled %d, reordered %d, holes %d, untrue answers %d", v.lost(), v.Duplicates, v.OutOfOrder, v.Holes, v.untrue())
	if c.injected() == 0 {
		c.t.Error("no fault was injected")
	}
}

// ledger appends the run to the file that CELLOG_CHAOS_LEDGER names.
func (c *chaos) ledger(seed uint64, seconds int, v verified) {
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
	for _, k := range slices.Sorted(maps.Keys(c.faults)) {
		kinds = append(kinds, fmt.Sprintf("%s %d (%v)", k, c.faults[k], c.worst[k]))
	}
	broker := "embedded"
	if kafkatest.Real() {
		broker = "kafka"
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	a := v.Acks
	if _, err := fmt.Fprintf(f, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", time.Now().UTC().Format(time.RFC3339), os.Getenv("CELLOG_CHAOS_COMMIT"),
		harness.Flavour(), broker, seed, seconds, c.injected(), a.Acknowledged, a.Accepted, a.Rejected, v.lost(), v.Duplicates, v.OutOfOrder, result, strings.Join(kinds, ", ")); err != nil {
		c.t.Error(err)
	}
}
