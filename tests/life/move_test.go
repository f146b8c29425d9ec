package life

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/tests/harness"
)

// killMoveAt runs `cellog shard move` until it prints a line with the given
// beginning, and kills it with SIGKILL there. It says whether it came to that.
func (d *dev) killMoveAt(t *testing.T, line string, args ...string) bool {
	t.Helper()
	cmd := exec.Command(harness.Binary, append([]string{"shard", "move", "--config", d.config(t)}, args...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	came := false
	for s := bufio.NewScanner(out); s.Scan(); {
		if strings.HasPrefix(s.Text(), line) {
			came = true
			_ = cmd.Process.Kill() // gone is as good
			break
		}
	}
	_ = cmd.Wait() // it was killed
	return came
}

// finishMove runs a move to its end, and returns when the shard is open there. One
// that a keeper has finished meanwhile is as good.
func (d *dev) finishMove(t *testing.T, shard, to string) {
	t.Helper()
	harness.WaitFor(t, 2*time.Minute, func() error {
		out, stderr, code := harness.Try(t, "shard", "move", "trips", shard, "--to", to, "--config", d.config(t), "--format", "json")
		if code != 0 && !strings.Contains(stderr, "on that cluster already") {
			return errors.New(out + stderr)
		}
		return nil
	})
	harness.WaitFor(t, time.Minute, func() error {
		out, stderr, _ := harness.Try(t, "shard", "describe", "trips", shard, "--config", d.config(t), "--format", "json")
		var s struct{ Cluster, State string }
		if err := json.Unmarshal([]byte(out), &s); err != nil || s.Cluster != to || s.State != "open" {
			return fmt.Errorf("%s%s (%w)", out, stderr, err)
		}
		return nil
	})
}

// TestMoveUnderLoad moves a shard there and back under load, while the mover is
// killed with SIGKILL at each of its steps, and once everything else too. Every
// put that was answered 200, 201 or 202 is there, and once in Kafka; the logs are
// dense, the indexes complete.
func TestMoveUnderLoad(t *testing.T) {
	seed := harness.Seed(t)
	d := newDev(t)
	d.start(t)
	j := &journal{grown: make(chan struct{}, 1)}
	to := "c2"
	for i, line := range []string{"copying", "closed on", "handed over", "open on", "copying", "closed on"} {
		stop := load(t, d.HTTP, j, seed+uint64(i))
		j.waitForGrowth(t, 1000)
		if !d.killMoveAt(t, line, "trips", "0", "--to", to) {
			t.Errorf("a move to %s never came to %q", to, line)
		}
		if i == 1 { // the tailers, masters and the broker die too, while the shard is closed
			stop()
			d.kill(t)
			d.start(t)
			stop = load(t, d.HTTP, j, seed+100)
		}
		j.waitForGrowth(t, 200)
		d.finishMove(t, "0", to)
		j.waitForGrowth(t, 200)
		stop()
		to = map[string]string{"c1": "c2", "c2": "c1"}[to]
	}
	if d.killMoveAt(t, "closed on", "trips", "0", "--to", to) {
		if out, stderr, code := harness.Try(t, "shard", "move", "trips", "0", "--undo", "--config", d.config(t)); code != 0 && !strings.Contains(stderr, "cannot be undone") {
			t.Errorf("undo: exit %d: %s%s", code, out, stderr)
		}
	}
	t.Logf("%d cells acknowledged", j.len())
	d.checkAcknowledged(t, j.cells)
	if out, stderr, code := harness.Try(t, "doctor", "--config", d.config(t)); strings.Contains(out, "shard trips") || code > 1 {
		t.Errorf("doctor: exit %d: %s%s", code, out, stderr)
	}
	if out, stderr, code := harness.Try(t, "cluster", "describe", "c2", "--config", d.config(t)); code != 0 || !strings.Contains(out, "owns 8 shards of trips") && !strings.Contains(out, "owns 9 shards of trips") {
		t.Errorf("cluster describe: exit %d: %s%s", code, out, stderr)
	}
	d.stop(t)
}
