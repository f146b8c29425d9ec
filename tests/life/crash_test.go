package life

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/tests/harness"
)

// crashes is how often TestKillEverything kills everything.
const crashes = 5

// acked is one put that was answered 201 or 200.
type acked struct {
	key  cellog.Key
	body string
}

// journal collects what was acknowledged.
type journal struct {
	mu    sync.Mutex
	cells []acked
	grown chan struct{} // gets a value when cells grew, if anyone waits
}

func (j *journal) add(a acked) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cells = append(j.cells, a)
	select {
	case j.grown <- struct{}{}:
	default:
	}
}

func (j *journal) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.cells)
}

// waitForGrowth returns when n more cells than now are acknowledged.
func (j *journal) waitForGrowth(t *testing.T, n int) {
	t.Helper()
	limit := time.After(time.Minute)
	for from := j.len(); j.len() < from+n; {
		select {
		case <-j.grown:
		case <-limit:
			t.Fatalf("%d cells acknowledged in a minute, want %d", j.len()-from, n)
		}
	}
}

// TestKillEverything kills cellog dev, its servers and its broker with SIGKILL
// under load, again and again. Every acknowledged cell must be readable, and
// once in Kafka; cells that were not acknowledged may be there or not.
func TestKillEverything(t *testing.T) {
	seed := harness.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))

	d := newDev(t)
	j := &journal{grown: make(chan struct{}, 1)}
	for crash := range crashes {
		d.start(t)
		stop := load(t, d.HTTP, j, rng.Uint64())
		j.waitForGrowth(t, 300+rng.IntN(1500))
		d.kill(t)
		stop()
		t.Logf("crash %d: %d cells acknowledged so far", crash+1, j.len())
	}
	d.start(t)
	c := d.client(t)
	for _, a := range j.cells {
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
		seen := make(map[cellog.Key]int)
		for _, column := range columns {
			for _, cell := range readTopic(t, d, column) {
				seen[cell.Key]++
			}
		}
		for key, n := range seen {
			if n != 1 {
				t.Fatalf("cell %s is %d times in Kafka", key, n)
			}
		}
		for _, a := range j.cells {
			if seen[a.key] != 1 {
				return fmt.Errorf("acknowledged cell %s is not in Kafka", a.key)
			}
		}
		return nil
	})
	harness.WaitFor(t, 3*time.Minute, func() error {
		if out, code := harness.Cellog(t, "verify", "trips", "--config", d.config(t), "--format", "json"); code != 0 {
			return fmt.Errorf("verify: exit %d: %s", code, out)
		}
		return nil
	})
	d.stop(t)
}

var columns = []string{"BASE", "STATUS"}

// load puts cells with 32 clients until stop is called, and journals what is
// acknowledged. Puts fail when everything dies: that is expected and not
// retried.
func load(t *testing.T, url string, j *journal, seed uint64) (stop func()) {
	t.Helper()
	c, err := client.New(client.Config{URLs: []string{url}, Budget: -1, AttemptTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for w := range uint64(32) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, w))
			for ctx.Err() == nil {
				var row uuid.UUID
				for i := range row {
					row[i] = byte(rng.Uint32())
				}
				a := acked{key: cellog.Key{Row: row, Column: columns[rng.IntN(len(columns))], Ref: cellog.RefKey(rng.IntN(3))}}
				a.body = fmt.Sprintf(`{"payment":"cash","total":%d.25,"pickup_zone":"zone %d"}`, rng.IntN(1000), rng.IntN(50))
				if _, err := c.Put(ctx, "trips", cellog.Put{Key: a.key, Body: []byte(a.body)}); err == nil {
					j.add(a)
				} else if ctx.Err() == nil {
					select { // the next attempt may be after the crash
					case <-time.After(10 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
		c.Close()
	}
}
