package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/tests/harness"
)

// promoted waits until Kafka says that a cluster is open in another term than
// the first, and returns what `cellog cluster list` prints of it.
func (d *dev) promoted(t *testing.T, cluster string, term int) (node string) {
	t.Helper()
	harness.WaitFor(t, time.Minute, func() error {
		out, _, _ := harness.Try(t, "cluster", "list", cluster, "--config", d.config(t), "--format", "json")
		var all []struct {
			Term          int
			State, Opened string
			Nodes         []struct {
				Name, Role   string
				Shards, Open int
			}
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
			return fmt.Errorf("cluster list: %q (%w)", out, err)
		}
		c := all[0]
		for _, n := range c.Nodes {
			if n.Name == c.Opened && n.Role == "master" && n.Open == n.Shards && c.State == "open" && c.Term >= term {
				node = n.Name
				return nil
			}
		}
		return errors.New(out)
	})
	return node
}

// node returns a node of the ready file.
func (d *dev) node(t *testing.T, name string) (addr, user, password string, pid int) {
	t.Helper()
	for _, c := range d.Clusters {
		for _, n := range c.Nodes {
			if n.Name == name {
				return n.Addr, n.User, n.Password, n.PID
			}
		}
	}
	t.Fatalf("no node %s", name)
	return
}

// loseDisk kills a server and deletes its data, so that it never comes back with
// what it had.
func (d *dev) loseDisk(t *testing.T, name string) {
	t.Helper()
	_, _, _, pid := d.node(t, name)
	if _, err := harness.Freeze(pid); err != nil { // or it were back before its data is gone
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(d.dir, "clusters", name[:2], name)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// checkAcknowledged demands every acknowledged cell by HTTP and once in Kafka,
// and that verify finds no difference.
func (d *dev) checkAcknowledged(t *testing.T, cells []acked) {
	t.Helper()
	c := d.client(t)
	for _, a := range cells {
		harness.WaitFor(t, time.Minute, func() error { // one answered 202 may have to be drained first
			cell, err := c.Get(t.Context(), "trips", a.key, client.ReadOptions{})
			if err != nil {
				return fmt.Errorf("acknowledged cell %s: %w", a.key, err)
			}
			if string(cell.Body) != a.body {
				t.Fatalf("acknowledged cell %s: body %s, want %s", a.key, cell.Body, a.body)
			}
			return nil
		})
	}
	harness.WaitFor(t, 3*time.Minute, func() error {
		if out, code := harness.Cellog(t, "verify", "trips", "--config", d.config(t), "--format", "json"); code != 0 {
			return errors.New("verify: " + out)
		}
		return nil
	})
	seen := map[cellog.Key]int{}
	for _, column := range columns {
		for _, cell := range readTopic(t, d, column) {
			seen[cell.Key]++
		}
	}
	for _, a := range cells {
		if seen[a.key] != 1 {
			t.Fatalf("acknowledged cell %s is %d times in Kafka", a.key, seen[a.key])
		}
	}
	for key, n := range seen {
		if n != 1 {
			t.Fatalf("cell %s is %d times in Kafka", key, n)
		}
	}
}

// TestMasterLostForEver deletes a master's disk under load. The minion takes its
// place by itself, and every put that was answered 201 or 202 is there, once. Then
// the other cluster loses its master too, and then the first one again: its empty
// node was rebuilt meanwhile.
func TestMasterLostForEver(t *testing.T) {
	seed := harness.Seed(t)
	d := newDev(t, "--auto-promote", "1s")
	d.start(t)
	j := &journal{grown: make(chan struct{}, 1)}
	for i, name := range []string{"c1a", "c2a", "c1b"} {
		harness.WaitFor(t, time.Minute, func() error { // there is somebody to take over
			if out, stderr, code := harness.Try(t, "cluster", "list", name[:2], "--config", d.config(t)); code != 0 || strings.Count(out, "minion") != 1 {
				return errors.New(out + stderr)
			}
			return nil
		})
		stop := load(t, d.HTTP, j, seed+uint64(i))
		j.waitForGrowth(t, 500)
		d.loseDisk(t, name)
		began := time.Now()
		if got := d.promoted(t, name[:2], 2+i/2); got == name {
			t.Errorf("%s is the master still", got)
		}
		t.Logf("%s replaced after %v", name, time.Since(began).Round(100*time.Millisecond))
		j.waitForGrowth(t, 500)
		stop()
	}
	t.Logf("%d cells acknowledged", j.len())
	d.checkAcknowledged(t, j.cells)
	d.stop(t)
	d.start(t) // the nodes that were opened are the masters still
	d.checkAcknowledged(t, j.cells)
	d.stop(t)
}

// TestMasterFrozenForLong freezes a master under load for longer than the grace:
// another node takes its place. When it is thawed it earns nothing any more, and
// follows the new one.
func TestMasterFrozenForLong(t *testing.T) {
	d := newDev(t, "--auto-promote", "1s")
	d.start(t)
	j := &journal{grown: make(chan struct{}, 1)}
	stop := load(t, d.HTTP, j, harness.Seed(t))
	j.waitForGrowth(t, 500)
	_, _, _, pid := d.node(t, "c1a")
	if _, err := harness.Freeze(pid); err != nil {
		t.Fatal(err)
	}
	d.promoted(t, "c1", 2)
	j.waitForGrowth(t, 500)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	j.waitForGrowth(t, 500)
	harness.WaitFor(t, time.Minute, func() error {
		if out, stderr, code := harness.Try(t, "cluster", "list", "c1", "--config", d.config(t)); code != 0 || strings.Count(out, "minion") != 1 {
			return errors.New(out + stderr)
		}
		return nil
	})
	stop()
	d.checkAcknowledged(t, j.cells)
	d.stop(t)
}

// TestSemiLostTail stops replication, writes 1,000 cells to a cluster, and
// deletes its master's disk: only the copies on the other cluster's master have
// those cells. After the promotion all are back, in their order.
func TestSemiLostTail(t *testing.T) {
	d := newDev(t, "--auto-promote", "0s")
	d.start(t)
	exec := func(node, query string) {
		addr, user, password, _ := d.node(t, node)
		db, err := mysqlconn.Open(mysqlconn.Config{Addr: addr, User: user, Password: password})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	stop := "STOP REPLICA"
	if harness.Flavour() == "mariadb" {
		stop = "STOP SLAVE"
	}
	c, err := client.New(client.Config{URLs: []string{d.HTTP}, AttemptTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exec("c1b", stop)
	var mu sync.Mutex
	byShard := map[cellog.ShardID][]acked{} // in the order of their answers, one at a time per shard
	var all []acked
	var wg sync.WaitGroup
	for s := cellog.ShardID(0); s < shards; s += 2 { // those of c1
		wg.Go(func() {
			for n := 0; n < 125; {
				a := acked{key: cellog.Key{Row: uuid.New(), Column: columns[n%2], Ref: cellog.RefKey(n)}, body: fmt.Sprintf(`{"total":%d.25}`, rand.IntN(1000))}
				if cellog.ShardOf(a.key.Row, shards) != s {
					continue
				}
				if _, err := c.Put(t.Context(), "trips", cellog.Put{Key: a.key, Body: []byte(a.body)}); err != nil {
					t.Errorf("put: %v", err)
					return
				}
				n++
				mu.Lock()
				byShard[s] = append(byShard[s], a)
				all = append(all, a)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	d.loseDisk(t, "c1a")
	out, code := harness.Cellog(t, "cluster", "promote", "c1", "--config", d.config(t), "--format", "json")
	var did struct {
		Node                    string
		Term                    int
		Drained, Restored, Lost int
	}
	if err := json.Unmarshal([]byte(out), &did); err != nil || code != 0 || did.Node != "c1b" || did.Term != 2 || did.Drained != len(all) || did.Lost != 0 {
		t.Fatalf("promote: exit %d: %s (%v), want %d drained", code, out, err, len(all))
	}
	t.Logf("%+v of %d", did, len(all))
	d.checkAcknowledged(t, all)
	for s, cells := range byShard {
		stdout, code := harness.Cellog(t, "log", "read", "trips", fmt.Sprint(int(s)), "--url", d.HTTP, "--format", "json", "--provisional")
		if code != 0 {
			t.Fatalf("log read: exit %d", code)
		}
		at := 0
		for _, a := range cells {
			i := strings.Index(stdout[at:], a.key.Row.String())
			if i < 0 {
				t.Fatalf("shard %d: cell %s is not behind the one that was acknowledged before it", s, a.key)
			}
			at += i
		}
	}
	d.stop(t)
}
