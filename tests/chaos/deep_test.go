package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/tests/harness"
)

// shardsOf lists the shards that a node's cluster has now.
func (r *rig) shardsOf(node string) []cellog.ShardID {
	_, cluster := r.masterOf(node)
	return r.owners.shards(cluster)
}

// masterOf returns the master of a node's cluster, and the cluster's number.
func (r *rig) masterOf(node string) (local.Node, int) {
	r.t.Helper()
	for i, c := range r.local.Clusters() {
		for _, n := range c.Nodes {
			if n.Name == node {
				return c.Nodes[0], i
			}
		}
	}
	r.t.Fatalf("no node %s", node)
	return local.Node{}, 0
}

// heads is the sum of a server's last added_ids: how far it is.
func (c *chaos) heads(node string) (sum int64, err error) {
	var q []string
	for _, s := range c.r.shardsOf(node) {
		q = append(q, "SELECT last_added_id AS n FROM "+cellog.DatabaseName("trips", s)+".shard_log")
	}
	err = ask(c.t.Context(), c.r.node(node), "SELECT SUM(n) FROM ("+strings.Join(q, " UNION ALL ")+") AS logs", &sum)
	return sum, err
}

// stands waits until a server's logs have not grown for a second, or it does
// not answer.
func (c *chaos) stands(node string) error {
	from, since := int64(-1), time.Now()
	return harness.Poll(c.t, fires, func() error {
		n, err := c.heads(node)
		if err == nil && n != from {
			from, since = n, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("the logs of %s still grow", node)
		}
		return nil
	})
}

// fillDisk leaves a server no space, and gives it back.
func fillDisk(c *chaos, length time.Duration) error {
	node := diskNodes[c.rng.IntN(len(diskNodes))]
	c.t.Logf("  %s", node)
	pid := c.r.node(node).PID
	ballast := filepath.Join(c.r.disks[node], "ballast")
	defer os.Remove(ballast)
	f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) >= 4096; {
		_, err := f.Write(chunk)
		if errors.Is(err, syscall.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			return err
		}
	}
	if err := c.stands(node); err != nil {
		return err
	}
	time.Sleep(length) // how long it is full
	if err := os.Remove(ballast); err != nil {
		return err
	}
	if err := f.Close(); err != nil { // now the space is free
		return err
	}
	// MySQL ends itself when it cannot write its binlog.
	if c.r.node(node).PID != pid || c.r.local.Ready() != nil {
		c.r.awaitServers()
	}
	return c.caughtUp(node)
}

// caughtUp waits until a minion has what its master had when this was called, and
// sees to it that it applies: a full disk may have stopped it, and it looks only
// once a minute whether there is space again.
func (c *chaos) caughtUp(node string) error {
	master, _ := c.r.masterOf(node)
	if master.Name == node {
		return nil
	}
	want, err := c.heads(master.Name)
	if err != nil {
		return err
	}
	return harness.Poll(c.t, 3*time.Minute, func() error {
		n := c.r.node(node)
		status, err := replica(c.t.Context(), n)
		if err != nil {
			return err
		}
		if status[spoken("Slave_SQL_Running", "Replica_SQL_Running")] == "No" || status[spoken("Slave_IO_Running", "Replica_IO_Running")] == "No" {
			if err := run(c.t.Context(), n, spoken("START SLAVE", "START REPLICA")); err != nil {
				return err
			}
		}
		if has, err := c.heads(node); err != nil || has < want {
			return fmt.Errorf("%s has %d cells of %d (%w): %s %s", node, has, want, err, status["Last_IO_Error"], status["Last_SQL_Error"])
		}
		return nil
	})
}

// lag stops a minion from applying what it receives.
func lag(c *chaos, length time.Duration) error {
	n := c.server(local.Minion)
	start := spoken("START SLAVE SQL_THREAD", "START REPLICA SQL_THREAD")
	if err := run(c.t.Context(), n, spoken("STOP SLAVE SQL_THREAD", "STOP REPLICA SQL_THREAD")); err != nil {
		return err
	}
	master, _ := c.r.masterOf(n.Name)
	err := harness.Poll(c.t, fires, func() error {
		has, err := c.heads(n.Name)
		if err != nil {
			return err
		}
		if wants, err := c.heads(master.Name); err != nil || wants < has+50 {
			return fmt.Errorf("%s has %d of %d cells: it does not lag (%v)", n.Name, has, wants, err)
		}
		return nil
	})
	time.Sleep(length)
	return errors.Join(err, run(c.t.Context(), n, start))
}

// freezeInTransaction freezes a worker that holds the lock of a shard: it is
// stopped when its master tells it of a duplicate, which it would look up under
// the lock. Others must be able to write every shard of that master within
// seconds, though the worker is still frozen.
func freezeInTransaction(c *chaos, length time.Duration) error {
	p := c.process("worker")
	master := c.server(local.Master)
	l := c.r.linkOf(p.name, master.Name)
	stopped := make(chan error, 1)
	var once sync.Once
	l.Watch(func(answer []byte) {
		if bytes.Contains(answer, []byte("Duplicate entry")) {
			once.Do(func() {
				_, err := harness.Freeze(p.pid())
				stopped <- err
			})
		}
	})
	defer func() { _ = syscall.Kill(p.pid(), syscall.SIGCONT) }() // gone is as good
	defer l.Watch(nil)
	select {
	case err := <-stopped:
		if err != nil {
			return err
		}
	case <-time.After(fires):
		return errors.New("the worker met no duplicate")
	}
	since := time.Now()
	// A shard that is locked at each look: others hold its lock for moments only.
	held := map[cellog.ShardID]int{}
	err := harness.Poll(c.t, 2*time.Second, func() error {
		for _, s := range c.r.shardsOf(master.Name) {
			var id int
			err := ask(c.t.Context(), master, "SELECT id FROM "+cellog.DatabaseName("trips", s)+".shard_log FOR UPDATE NOWAIT", &id)
			switch mysqlconn.Code(err) {
			case 3572, 1205: // MySQL's and MariaDB's answer
				held[s]++
			default:
				held[s] = 0
			}
			if held[s] > 10 {
				return nil
			}
		}
		return errors.New("no shard stays locked")
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(c.t.Context())
	h := &http.Client{Timeout: 20 * time.Second}
	defer h.CloseIdleConnections()
	for i, s := range c.r.shardsOf(master.Name) {
		rng := rand.New(rand.NewPCG(c.rng.Uint64(), uint64(i)))
		var others []*process
		for _, w := range c.r.role("worker") {
			if w != p {
				others = append(others, w)
			}
		}
		g.Go(func() error {
			a := newCell(rng)
			for cellog.ShardOf(a.Key.Row, harness.Shards) != s {
				a = newCell(rng)
			}
			for n := 0; ctx.Err() == nil && time.Since(since) < fires; n++ {
				a.Status = attempt(h, others[n%len(others)].url, a)
				if err := c.l.journal.Append(a); err != nil {
					return err
				}
				if a.Status == 201 || a.Status == 200 {
					return nil
				}
			}
			return fmt.Errorf("shard %d takes no cell %v after %s was frozen in a transaction: last answer %d", s, time.Since(since).Round(time.Second), p.name, a.Status)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c.t.Logf("  every shard was written %v later", time.Since(since).Round(10*time.Millisecond))
	time.Sleep(length)
	return nil
}

// stepClock puts a server's clock two hours forward or back, and right again.
func stepClock(c *chaos, length time.Duration) error {
	off := 2 * time.Hour
	if c.rng.IntN(2) == 0 {
		off = -off
	}
	c.t.Logf("  %s by %v", clockNode, off)
	is := func(want time.Duration) error {
		return harness.Poll(c.t, fires, func() error {
			var now int64
			if err := ask(c.t.Context(), c.r.node(clockNode), "SELECT UNIX_TIMESTAMP()", &now); err != nil {
				return err
			}
			if got := time.Until(time.Unix(now, 0)) - want; got.Abs() > time.Minute {
				return fmt.Errorf("the clock of %s is off by %v, want %v", clockNode, got+want, want)
			}
			return nil
		})
	}
	c.r.step(off)
	err := is(off)
	time.Sleep(length)
	c.r.step(0)
	return errors.Join(err, is(0))
}

// copiesWithoutKafka lets cells be answered 202 while a master is frozen, and
// thaws it while the broker is frozen: the cells go in, but they are not final,
// so every one of them must keep its copy.
func copiesWithoutKafka(c *chaos, length time.Duration) error {
	n := c.server(local.Master)
	_, cluster := c.r.masterOf(n.Name)
	thawMaster, err := harness.Freeze(n.PID)
	if err != nil {
		return err
	}
	defer thawMaster()
	// Cells of its own: one that was final before may lose its copies at once.
	h := &http.Client{Timeout: 20 * time.Second}
	defer h.CloseIdleConnections()
	keys := make([]cellog.Key, 12)
	var g errgroup.Group
	until := time.Now().Add(fires)
	for i := range keys {
		rng := rand.New(rand.NewPCG(c.rng.Uint64(), uint64(i)))
		g.Go(func() error {
			status := 0
			for time.Now().Before(until) {
				a := newCell(rng)
				if c.r.owners.clusterOf(a.Key.Row) != cluster {
					continue
				}
				a.Status = attempt(h, c.l.urls[i%len(c.l.urls)], a)
				if err := c.l.journal.Append(a); err != nil {
					return err
				}
				if keys[i], status = a.Key, a.Status; status == 202 {
					return nil
				}
			}
			return fmt.Errorf("while %s was frozen no cell was answered 202, the last answer is %d", n.Name, status)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	thawBroker, err := harness.Freeze(c.r.brokerPID())
	if err != nil {
		return err
	}
	defer thawBroker()
	thawMaster()
	err = harness.Poll(c.t, 4*fires, func() error {
		for _, k := range keys {
			var one int
			q := fmt.Sprintf("SELECT COUNT(*) FROM %s.entity WHERE %s", cellog.DatabaseName("trips", cellog.ShardOf(k.Row, harness.Shards)), where(k))
			if err := ask(c.t.Context(), n, q, &one); err != nil || one != 1 {
				return fmt.Errorf("%s was answered 202 and is not in (%v)", k, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	time.Sleep(max(length, 2*time.Second)) // a few looks of the drainers
	for _, k := range keys {
		copies := 0
		for _, other := range c.r.nodes() {
			var here int
			if err := ask(c.t.Context(), other, "SELECT COUNT(*) FROM cellog_buffer.buffered_cells WHERE "+where(k), &here); err != nil {
				return err
			}
			copies += here
		}
		if copies == 0 {
			return fmt.Errorf("%s was answered 202, is not in Kafka, and its copies are gone", k)
		}
	}
	return nil
}

// where is the condition that a row is of a key.
func where(k cellog.Key) string {
	return fmt.Sprintf("row_key = x'%x' AND column_name = '%s' AND ref_key = %d", k.Row[:], k.Column, k.Ref)
}
