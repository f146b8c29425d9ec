package chaos

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

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

	kind   string // of the fault that is on
	faults map[string]int
	worst  map[string]gaps          // the longest, by kind
	total  map[string]gaps          // the sum of each fault's longest
	first  map[string]time.Duration // the longest from a promotion to its first event
}

// maxCells is about how many cells a run puts at most, however long it is, so
// that the check at its end takes minutes.
const maxCells = 500_000

func newChaos(t *testing.T, seed uint64, seconds int, b broken) *chaos {
	t.Helper()
	c := &chaos{t: t, rng: rand.New(rand.NewPCG(seed, 1)), faults: map[string]int{}, worst: map[string]gaps{}, total: map[string]gaps{}, first: map[string]time.Duration{}}
	c.r = newRig(t, b)
	c.l = newLoad(t, c.r, seed, time.Duration(clients*seconds)*time.Second/maxCells)
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
	c := newChaos(t, seed, seconds, broken{})
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
	v, findings := c.check(time.Minute, 10*time.Minute)
	c.report(v, seed, seconds)
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
	length := time.Duration(500+c.rng.IntN(2000)) * time.Millisecond
	if c.rng.IntN(12) == 0 {
		length += 8 * time.Second // beyond the time-outs of transactions and sessions
	}
	c.t.Logf("%s, for %v", f.kind, length)
	start := time.Now()
	c.kind = f.kind
	c.l.measure()
	err := f.run(c, length)
	if calm := c.l.calm(20); err == nil {
		err = calm
	}
	if err != nil {
		c.t.Errorf("%s: %v", f.kind, err)
	}
	g, failed := c.l.measured()
	c.t.Logf("  healed after %v; %v%v", time.Since(start).Round(100*time.Millisecond), g, failed)
	c.faults[f.kind]++
	c.worst[f.kind] = c.worst[f.kind].longest(g)
	c.total[f.kind] = c.total[f.kind].plus(g)
}
