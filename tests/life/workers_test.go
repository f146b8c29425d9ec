package life

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/tests/harness"
)

// extra is a worker beside a dev's own.
type extra struct {
	http, admin string
	cmd         *exec.Cmd
}

// end kills the worker. Twice is fine.
func (w *extra) end() {
	_ = w.cmd.Process.Kill() // gone is as good
	_ = w.cmd.Wait()
}

// addWorker starts `cellog worker run` over a dev's servers.
func (d *dev) addWorker(t *testing.T, config string, n int) *extra {
	t.Helper()
	w := &extra{http: harness.FreeAddr(t), admin: harness.FreeAddr(t)}
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(config), fmt.Sprintf("worker%d.yml", n))
	if err := os.WriteFile(file, []byte(withListeners(t, string(text), w.http, w.admin)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.cmd = exec.Command(harness.Binary, "worker", "run", "--config", file)
	w.cmd.Stderr = &strings.Builder{}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.end)
	harness.WaitFor(t, time.Minute, func() error {
		resp, err := http.Get("http://" + w.admin + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("worker %d: %s", n, resp.Status)
		}
		return nil
	})
	return w
}

// withListeners replaces the addresses of worker and admin in a printed
// configuration.
func withListeners(t *testing.T, config, worker, admin string) string {
	t.Helper()
	section, replaced := "", 0
	lines := strings.Split(config, "\n")
	for i, l := range lines {
		if l != "" && l[0] != ' ' {
			section = strings.TrimSuffix(l, ":")
		}
		if !strings.HasPrefix(strings.TrimSpace(l), "listen:") {
			continue
		}
		addr := map[string]string{"worker": worker, "admin": admin}[section]
		lines[i] = l[:strings.Index(l, "listen:")] + "listen: " + addr
		replaced++
	}
	if replaced != 2 {
		t.Fatalf("the configuration has %d listeners, want 2", replaced)
	}
	return strings.Join(lines, "\n")
}

// metric returns the value of a counter, 0 if there is none.
func metric(t *testing.T, admin, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(b.String(), "\n") {
		if v, ok := strings.CutPrefix(l, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	return 0 // one with labels is not there before its first event
}

// TestWorkersForward runs four workers. Clients ask two of them at random, and
// cells go to the home worker of their shard. Then one of the others is killed
// and one frozen: no put may fail, every acknowledged cell is there, once.
func TestWorkersForward(t *testing.T) {
	d := newDev(t, "--shards", "128") // of a few a worker's address may win none
	d.start(t)
	config := d.config(t)
	asked, killed, frozen := d.addWorker(t, config, 1), d.addWorker(t, config, 2), d.addWorker(t, config, 3)

	var clients []*client.Client
	for _, url := range []string{d.HTTP, "http://" + asked.http} {
		c, err := client.New(client.Config{URLs: []string{url}, Budget: -1, AttemptTimeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	j := &journal{grown: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var failures atomic.Int64
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				a := acked{key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, body: fmt.Sprintf(`{"total":%d.25}`, rand.IntN(1000))}
				if _, err := clients[rand.IntN(len(clients))].Put(context.WithoutCancel(ctx), "trips", cellog.Put{Key: a.key, Body: []byte(a.body)}); err == nil {
					j.add(a)
				} else if failures.Add(1) < 10 {
					t.Errorf("put %s: %v", a.key, err)
				}
			}
		})
	}
	defer func() { cancel(); wg.Wait() }()
	harness.WaitFor(t, time.Minute, func() error {
		for _, w := range []*extra{killed, frozen} { // take cells though no client asks them
			if n := metric(t, w.admin, `cellog_ingest_puts_total{outcome="created"}`); n < 200 {
				return fmt.Errorf("%s has %.0f forwarded cells, want 200", w.http, n)
			}
		}
		if n := metric(t, asked.admin, "cellog_ingest_forwarded_total"); n < 200 {
			return fmt.Errorf("%s has forwarded %.0f cells, want 200", asked.http, n)
		}
		return nil
	})
	if _, err := harness.Freeze(frozen.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	j.waitForGrowth(t, 500)
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.waitForGrowth(t, 2000)
	if n := metric(t, asked.admin, "cellog_ingest_fallbacks_total"); n == 0 {
		t.Error("no cell was written by another worker than its shard's home: nothing was tested")
	}
	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	j.waitForGrowth(t, 1000)
	cancel()
	wg.Wait()
	for _, a := range j.cells {
		cell, err := clients[0].Get(t.Context(), "trips", a.key, client.ReadOptions{})
		if err != nil || string(cell.Body) != a.body {
			t.Fatalf("acknowledged cell %s: %v, body %s, want %s", a.key, err, cell.Body, a.body)
		}
	}
	t.Logf("%d cells acknowledged, %d puts failed", j.len(), failures.Load())
	harness.WaitFor(t, 3*time.Minute, func() error {
		if out, code := harness.Cellog(t, "verify", "trips", "--config", config, "--format", "json"); code != 0 {
			return fmt.Errorf("verify: exit %d: %s", code, out)
		}
		return nil
	})
	d.stop(t)
}
