package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/tests/harness"
)

// fault is one kind of fault. run injects it, keeps it on for about length,
// heals it, and returns an error if it did not take effect, or broke a promise
// that shows only while it is on.
type fault struct {
	kind string
	run  func(c *chaos, length time.Duration) error
	// needs says whether this machine can do it; nil means any can.
	needs func(r *rig) bool
}

// faults are all kinds, see the package's comment on adding one.
var faults = []fault{
	{kind: "freeze master", run: freezeServer(local.Master)},
	{kind: "freeze minion", run: freezeServer(local.Minion)},
	{kind: "freeze worker", run: freezeRole("worker")},
	{kind: "freeze tailer", run: freezeRole("tailer")},
	{kind: "freeze indexer", run: freezeRole("indexer")},
	{kind: "freeze trigger", run: freezeRole("trigger")},
	{kind: "freeze broker", run: freezeBroker},
	{kind: "kill master", run: killServer(local.Master)},
	{kind: "kill minion", run: killServer(local.Minion)},
	{kind: "kill worker", run: killRole("worker")},
	{kind: "kill tailer", run: killRole("tailer")},
	{kind: "kill indexer", run: killRole("indexer")},
	{kind: "kill trigger", run: killRole("trigger")},
	{kind: "kill broker", run: killBroker},
	{kind: "kill everything", run: killEverything},
	{kind: "cut link", run: holdLink(harness.Cut)},
	{kind: "slow link", run: holdLink(harness.Slow)},
	{kind: "silent link", run: holdLink(harness.Silent)},
	{kind: "link without asks", run: holdLink(harness.DropAsks)},
	{kind: "link without answers", run: holdLink(harness.DropAnswers)},
	{kind: "cut off master", run: cutOffMaster},
	{kind: "full disk", run: fillDisk, needs: func(r *rig) bool { return len(r.disks) > 0 }},
	{kind: "lagging minion", run: lag},
	{kind: "freeze worker in transaction", run: freezeInTransaction},
	{kind: "step clock", run: stepClock, needs: func(r *rig) bool { return r.clock != "" }},
	{kind: "copies without Kafka", run: copiesWithoutKafka},
	{kind: "move shard", run: moveShard},
	{kind: promotes + "lost master", run: loseMaster},
	{kind: promotes + "cut-off master", run: cutOffWithWorker},
	{kind: promotes + "frozen master", run: freezeAndReplace},
	{kind: promotes + "killed promoter", run: killPromoter},
	{kind: promotes + "lost tail", run: loseTail},
}

// nothing is the control that comes with each round of faults: for how long no put
// succeeds on this machine while none is injected.
var nothing = fault{kind: "nothing", run: func(_ *chaos, length time.Duration) error {
	time.Sleep(length) // how long nothing happens, not a wait for anything
	return nil
}}

// promotes begins the kinds that make another node the master.
const promotes = "promote "

// fires is how long a fault may take to show its effect.
const fires = 15 * time.Second

// frozen stops a process for so long.
func frozen(pid int, length time.Duration) error {
	thaw, err := harness.Freeze(pid)
	if err != nil {
		return err
	}
	defer thaw()
	time.Sleep(length) // how long it is frozen, not a wait for anything
	return nil
}

// server chooses a server of a role.
func (c *chaos) server(role string) local.Node {
	names := c.r.names(role)
	n := c.r.node(names[c.rng.IntN(len(names))])
	c.t.Logf("  %s", n.Name)
	return n
}

// process chooses a process of a role.
func (c *chaos) process(role string) *process {
	all := c.r.role(role)
	p := all[c.rng.IntN(len(all))]
	c.t.Logf("  %s", p.name)
	return p
}

func freezeServer(role string) func(*chaos, time.Duration) error {
	return func(c *chaos, length time.Duration) error { return frozen(c.server(role).PID, length) }
}

func freezeRole(role string) func(*chaos, time.Duration) error {
	return func(c *chaos, length time.Duration) error { return frozen(c.process(role).pid(), length) }
}

func freezeBroker(c *chaos, length time.Duration) error { return frozen(c.r.brokerPID(), length) }

func killServer(role string) func(*chaos, time.Duration) error {
	return func(c *chaos, _ time.Duration) error {
		n := c.server(role)
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			return err
		}
		c.r.awaitServers(n.PID)
		return nil
	}
}

func killRole(role string) func(*chaos, time.Duration) error {
	return func(c *chaos, length time.Duration) error {
		p := c.process(role)
		p.kill()
		time.Sleep(length / 4) // how long it is away
		p.start()
		p.await()
		return nil
	}
}

func killBroker(c *chaos, _ time.Duration) error {
	before := c.r.brokerPID()
	c.r.restartBroker()
	if c.r.brokerPID() == before {
		return errors.New("the broker is the same process")
	}
	return nil
}

func killEverything(c *chaos, _ time.Duration) error {
	var pids []int
	for _, n := range c.r.nodes() {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			return err
		}
		pids = append(pids, n.PID)
	}
	for _, p := range c.r.procs {
		p.kill()
	}
	c.r.restartBroker()
	for _, p := range c.r.procs {
		if p.name != "broker" {
			p.start()
		}
	}
	c.r.awaitServers(pids...)
	for _, p := range c.r.procs {
		p.await()
	}
	return nil
}

// holdLink does something to a link over which something passed lately; if nothing
// comes over it meanwhile, to another one.
func holdLink(m harness.Mode) func(*chaos, time.Duration) error {
	return func(c *chaos, length time.Duration) error {
		for until := time.Now().Add(4 * fires); ; {
			var l *harness.Link
			err := harness.Poll(c.t, fires, func() error {
				l = c.r.links[c.rng.IntN(len(c.r.links))]
				if !l.Busy(m) || l.From == "admin" { // who promotes is gone by now
					return errors.New("nothing passes over any link")
				}
				return nil
			})
			if err != nil {
				return err
			}
			c.t.Logf("  %v", l)
			if err = c.hold([]*harness.Link{l}, m, length); err == nil || time.Now().After(until) {
				return err
			}
		}
	}
}

// cutOffMaster lets nothing pass between a master and all others, its minions
// too.
func cutOffMaster(c *chaos, length time.Duration) error {
	one := map[string]bool{c.server(local.Master).Name: true}
	return c.hold(c.r.between(one, nil), harness.Silent, length)
}

// hold keeps links in a mode for so long, and until it has hit something.
func (c *chaos) hold(links []*harness.Link, m harness.Mode, length time.Duration) error {
	for _, l := range links {
		l.Set(m)
		defer l.Set(harness.Pass)
	}
	time.Sleep(length) // how long it is on
	return harness.Poll(c.t, fires, func() error {
		for _, l := range links {
			if l.Fired() {
				return nil
			}
		}
		return fmt.Errorf("nothing came over %v", links)
	})
}

// between are the links that join two sets of processes and servers, by name
// (nil: all that are not in the first): hold them all, and one set is cut off
// from the other. Of the links of the other workers to a worker, from is
// "peers".
func (r *rig) between(one, other map[string]bool) (out []*harness.Link) {
	is := func(name string) bool { return other[name] || other == nil && !one[name] }
	for _, l := range r.links {
		if one[l.From] && is(l.To) || is(l.From) && one[l.To] {
			out = append(out, l)
		}
	}
	return out
}

// shuffled returns the possible kinds in an order of their own; only those that
// CELLOG_CHAOS_KINDS lists, if it is set: "kill broker,cut link". Promotions are
// spread over the first half: so all others meet changed roles in a short run.
func shuffled(rng *rand.Rand, r *rig) (out []fault) {
	only := os.Getenv("CELLOG_CHAOS_KINDS")
	var first, rest []fault
	for _, f := range faults {
		switch {
		case only != "" && !slices.Contains(strings.Split(only, ","), f.kind), f.needs != nil && !f.needs(r):
		case strings.HasPrefix(f.kind, promotes):
			first = append(first, f)
		default:
			rest = append(rest, f)
		}
	}
	for _, l := range [][]fault{first, rest} {
		rng.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
	}
	for i, f := range rest {
		out = append(out, f)
		if i%2 == 0 && len(first) > 0 {
			out, first = append(out, first[0]), first[1:]
		}
	}
	if out = append(out, first...); len(out) == 0 {
		return nil
	}
	return slices.Insert(out, rng.IntN(len(out)+1), nothing)
}
