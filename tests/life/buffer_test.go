package life

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
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

// TestMasterAway freezes a master under load. Its shards' puts are answered 202
// meanwhile, none fails, and all are there, once, when it is back.
func TestMasterAway(t *testing.T) {
	d := newDev(t, "--auto-promote", "0s")
	d.start(t)
	c, err := client.New(client.Config{URLs: []string{d.HTTP}, Budget: -1, AttemptTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	j, late := &journal{grown: make(chan struct{}, 1)}, &journal{grown: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				a := acked{key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, body: fmt.Sprintf(`{"total":%d.25}`, rand.IntN(1000))}
				res, err := c.Put(context.WithoutCancel(ctx), "trips", cellog.Put{Key: a.key, Body: []byte(a.body)})
				switch {
				case err != nil:
					t.Errorf("put %s: %v", a.key, err)
					return
				case res.Buffered:
					late.add(a)
				default:
					j.add(a)
				}
			}
		})
	}
	defer func() { cancel(); wg.Wait() }()
	j.waitForGrowth(t, 500)
	var master int
	for _, n := range d.Clusters[0].Nodes {
		if n.Role == "master" {
			master = n.PID
		}
	}
	if master == 0 {
		t.Fatal("no master")
	}
	if _, err := harness.Freeze(master); err != nil {
		t.Fatal(err)
	}
	frozen := true
	thaw := func() {
		if frozen {
			_ = syscall.Kill(master, syscall.SIGCONT) // gone is as good
		}
		frozen = false
	}
	defer thaw()
	late.waitForGrowth(t, 300)
	cancel()
	wg.Wait()
	// One of those meets another body once the master is back. The last one: what was on its way when the master froze
	// may have been committed there, and replicated, without an answer.
	rival, rivalBody := late.cells[len(late.cells)-1], `{"total":"another"}`
	if s, err := c.State(t.Context(), "trips", rival.key); err != nil || s.State != cellog.StateBuffered {
		t.Errorf("a cell answered 202 is %q, want buffered (%v)", s.State, err)
	}
	if out, code := harness.Cellog(t, "buffer", "list", "trips", "--url", d.HTTP, "--format", "json"); code != 0 || !strings.Contains(out, `"cells":`) {
		t.Errorf("buffer list: exit %d: %s", code, out)
	}
	if out, code := harness.Cellog(t, "cluster", "list", "--config", d.config(t)); code != 3 || !strings.Contains(out, "does not answer") {
		t.Errorf("cluster list: exit %d: %s", code, out)
	}
	thaw()
	harness.WaitFor(t, time.Minute, func() error {
		for _, a := range append(j.cells, late.cells...) {
			cell, err := c.Get(t.Context(), "trips", a.key, client.ReadOptions{})
			if err != nil {
				return fmt.Errorf("acknowledged cell %s: %w", a.key, err)
			}
			if string(cell.Body) != a.body {
				t.Fatalf("acknowledged cell %s: body %s, want %s", a.key, cell.Body, a.body)
			}
		}
		return nil
	})
	if _, err := c.Put(t.Context(), "trips", cellog.Put{Key: rival.key, Body: []byte(rivalBody)}); !client.IsConflict(err) {
		t.Errorf("another body for a cell that went in: %v, want a conflict", err)
	}
	t.Logf("%d cells answered 201, %d answered 202", j.len(), late.len())
	harness.WaitFor(t, time.Minute, func() error {
		left := 0
		for _, cl := range d.Clusters {
			for _, n := range cl.Nodes {
				if n.Role == "master" {
					left += d.buffered(t, n.Addr, n.User, n.Password)
				}
			}
		}
		if left > 0 {
			return fmt.Errorf("%d copies are still there", left)
		}
		return nil
	})
	if out, code := harness.Cellog(t, "buffer", "list", "trips", "--url", d.HTTP); code != 0 || out != "no cell waits\n" {
		t.Errorf("buffer list: exit %d: %s", code, out)
	}
	if out, code := harness.Cellog(t, "buffer", "rejects", "trips", "--url", d.HTTP); code != 0 || out != "no cell was rejected\n" {
		t.Errorf("buffer rejects: exit %d: %s", code, out)
	}
	var clusters []struct {
		Term   int
		State  string
		Opened string
		Nodes  []struct {
			Role         string
			Shards, Open int
			LagSeconds   *float64 `json:"lag_seconds"`
		}
	}
	out, code := harness.Cellog(t, "cluster", "list", "--config", d.config(t), "--format", "json")
	if err := json.Unmarshal([]byte(out), &clusters); err != nil || code != 0 || len(clusters) != 2 {
		t.Errorf("cluster list: exit %d: %s (%v)", code, out, err)
	}
	open := 0
	for _, cl := range clusters {
		for _, n := range cl.Nodes {
			open += n.Open
			if n.LagSeconds == nil || n.Shards != shards/2 {
				t.Errorf("%+v", n)
			}
		}
		if cl.Term != 1 || cl.State != "open" || cl.Opened == "" {
			t.Errorf("%+v", cl)
		}
	}
	if open != shards {
		t.Errorf("%d of %d shards are open", open, shards)
	}
	seen := map[cellog.Key]int{}
	for _, cell := range readTopic(t, d, "BASE") {
		seen[cell.Key]++
	}
	for _, a := range append(j.cells, late.cells...) {
		if seen[a.key] != 1 { // a copy goes only when its cell is in Kafka
			t.Fatalf("acknowledged cell %s is %d times in Kafka", a.key, seen[a.key])
		}
	}
	harness.WaitFor(t, 3*time.Minute, func() error {
		if out, code := harness.Cellog(t, "verify", "trips", "--config", d.config(t), "--format", "json"); code != 0 {
			return errors.New("verify: " + out)
		}
		return nil
	})
	d.stop(t)
}

// buffered counts the copies on a server.
func (d *dev) buffered(t *testing.T, addr, user, password string) (n int) {
	t.Helper()
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: addr, User: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "SELECT (SELECT COUNT(*) FROM cellog_buffer.buffered_cells) + (SELECT COUNT(*) FROM cellog_buffer.numbered_copies)").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
