package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/tests/harness"
)

// owners says which cluster has each shard.
type owners struct {
	mu sync.Mutex
	of [harness.Shards]int // a cluster's number
}

// newOwners are as a datastore is made.
func newOwners() *owners {
	o := &owners{}
	for s := range o.of {
		o.of[s] = s % len(minions)
	}
	return o
}

// owner is the number of the cluster that has a shard.
func (o *owners) owner(s cellog.ShardID) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[s]
}

// clusterOf is the number of the cluster that a row lives on.
func (o *owners) clusterOf(row uuid.UUID) int { return o.owner(cellog.ShardOf(row, harness.Shards)) }

// shards lists those of a cluster.
func (o *owners) shards(cluster int) (out []cellog.ShardID) {
	for s := range cellog.ShardID(harness.Shards) {
		if o.owner(s) == cluster {
			out = append(out, s)
		}
	}
	return out
}

func (o *owners) moved(s cellog.ShardID, to int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[s] = to
}

// steps are the beginnings of what a mover says, in order.
var steps = []string{"copying", "closed on", "handed over", "open on"}

// moveShard moves a shard to another cluster as an operator does. Half the time
// its mover is killed on the way, and the next one finishes what it left.
func moveShard(c *chaos, _ time.Duration) error {
	from := c.rng.IntN(len(minions))
	if len(c.r.owners.shards(from)) <= harness.Shards/4 { // every cluster keeps some
		from = (from + 1) % len(minions)
	}
	all := c.r.owners.shards(from)
	s, to := all[c.rng.IntN(len(all))], (from+1)%len(minions)
	number, name := strconv.Itoa(int(s)), c.r.config.Clusters[to].Name
	args := []string{"shard", "move", "trips", number, "--to", name, "--config", c.r.admin}
	began := time.Now()
	if c.rng.IntN(2) == 0 {
		at := steps[c.rng.IntN(len(steps))]
		if err := killMover(c, at, args); err != nil {
			return err
		}
		c.t.Logf("  killed at %q", at)
	}
	did := struct {
		Epoch         cellog.Epoch
		Cells         cellog.AddedID
		ClosedSeconds float64 `json:"closed_seconds"`
	}{}
	err := harness.Poll(c.t, 3*time.Minute, func() error {
		out, why, code := harness.Try(c.t, append(args, "--format", "json")...)
		switch {
		case code == 0:
			return json.Unmarshal([]byte(out), &did)
		case strings.Contains(why, "on that cluster already"): // a keeper was faster
			return nil
		}
		return fmt.Errorf("move shard %d to %s: exit %d: %.1000s", s, name, code, why)
	})
	if err != nil {
		return err
	}
	// It took effect: it is open there, and only there.
	for i, cluster := range c.r.local.Clusters() {
		var state string
		err := harness.Poll(c.t, fires, func() error {
			err := ask(c.t.Context(), cluster.Nodes[0], "SELECT state FROM "+cellog.DatabaseName("trips", s)+".shard_log", &state)
			if err == nil && i == to && state != "open" { // the keeper opens it just now
				err = fmt.Errorf("shard %d is %s on %s", s, state, cluster.Nodes[0].Name)
			}
			return err
		})
		if err == nil && i == from && state != "moving:"+name {
			err = fmt.Errorf("shard %d is %s on %s, from where it moved", s, state, cluster.Nodes[0].Name)
		}
		if err != nil {
			return err
		}
	}
	c.r.owners.moved(s, to)
	c.t.Logf("  shard %d is on %s after %v: epoch %d, %d cells, the last mover had it closed for %.2f s", s, name, time.Since(began).Round(10*time.Millisecond), did.Epoch, did.Cells, did.ClosedSeconds)
	return nil
}

// killMover moves until it says that it is at a step.
func killMover(c *chaos, at string, args []string) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	kill, killed := context.WithCancel(ctx)
	defer killed()
	cmd, last := exec.CommandContext(kill, harness.Binary, args...), "nothing"
	cmd.Stderr = &lines{f: func(line string) {
		if last = line; strings.HasPrefix(line, at) {
			killed()
		}
	}}
	err := cmd.Run()
	if kill.Err() == nil || ctx.Err() != nil {
		return errors.Join(err, fmt.Errorf("the mover never came to %q: it said %q last", at, last))
	}
	return nil
}
