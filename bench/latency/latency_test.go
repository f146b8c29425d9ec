package latency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/triggers"
)

// probeEvery says that one of so many puts is looked up in the index.
const probeEvery = 200

// warmUp is left out of the figures: topics and tables are made then.
const warmUp = 3 * time.Second

func setting(tb testing.TB, name string, def int) int {
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		tb.Fatalf("%s=%q: want a positive number", name, s)
	}
	return n
}

// dev is what the ready file of a running cellog dev says, and its process.
type dev struct {
	HTTP     string
	Kafka    []string
	Clusters []struct {
		Nodes []struct {
			Role string
			PID  int
		}
	}
	pid int
}

// cpu returns how long this process, cellog dev, its masters and its minions
// have been computing.
func (d *dev) cpu(tb testing.TB) map[string]time.Duration {
	used := map[string]time.Duration{"client": cpuOf(tb, os.Getpid()), "cellog": cpuOf(tb, d.pid)}
	for _, c := range d.Clusters {
		for _, n := range c.Nodes {
			used[n.Role] += cpuOf(tb, n.PID)
		}
	}
	return used
}

// cpuOf reads a process's time, which Linux counts in hundredths of a second.
func cpuOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	var sum time.Duration
	for _, field := range strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			tb.Fatal(err)
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

// startDev builds and starts cellog dev; it ends with the benchmark.
func startDev(tb testing.TB) *dev {
	tb.Helper()
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	bin, ready := filepath.Join(dir, "cellog"), filepath.Join(dir, "ready.json")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/cellog/cellog/cmd/cellog").CombinedOutput(); err != nil {
		tb.Fatalf("build: %v\n%s", err, out)
	}
	args := []string{"dev", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--schemas", "testdata/schemas", "--ready-file", ready, "--log-level", "error"}
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		args = append(args, "--mysql", f)
	}
	cmd := exec.Command(bin, append(args, strings.Fields(os.Getenv("CELLOG_BENCH_FLAGS"))...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		if err := <-exited; err != nil {
			tb.Errorf("cellog dev: %v", err)
		}
	})
	for limit := time.Now().Add(2 * time.Minute); ; {
		d := dev{pid: cmd.Process.Pid}
		b, err := os.ReadFile(ready)
		if err == nil && json.Unmarshal(b, &d) == nil {
			return &d
		}
		if time.Now().After(limit) {
			tb.Fatal("cellog dev is not ready after two minutes; give CELLOG_BENCH_FLAGS='--log-level info' to see why")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// times collects durations from many goroutines.
type times struct {
	mu  sync.Mutex
	all []time.Duration
}

func (t *times) add(d time.Duration) {
	t.mu.Lock()
	t.all = append(t.all, d)
	t.mu.Unlock()
}

func (t *times) report(b *testing.B, name string) {
	b.Helper()
	slices.Sort(t.all)
	if len(t.all) == 0 {
		b.Errorf("%s: nothing measured", name)
		return
	}
	at := func(q float64) float64 {
		return float64(t.all[min(len(t.all)-1, int(q*float64(len(t.all))))].Microseconds()) / 1000
	}
	b.ReportMetric(at(.50), name+"-p50-ms")
	b.ReportMetric(at(.99), name+"-p99-ms")
	b.Logf("%-8s %6d  p50 %.1f  p90 %.1f  p99 %.1f  max %.1f ms", name, len(t.all), at(.50), at(.90), at(.99), at(1))
}

func BenchmarkLatency(b *testing.B) {
	rate, length := setting(b, "CELLOG_BENCH_RATE", 2000), time.Duration(setting(b, "CELLOG_BENCH_SECONDS", 20))*time.Second
	batch := setting(b, "CELLOG_BENCH_BATCH", 1)
	debug.SetGCPercent(400) // as cmd/cellog does: the load's own time is not what is measured
	d := startDev(b)
	for b.Loop() {
		measure(b, rate, batch, length, d)
	}
}

func measure(b *testing.B, rate, batch int, length time.Duration, d *dev) {
	c, err := client.New(client.Config{URLs: []string{d.HTTP}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var put, trigger, index, late times
	var answered, started sync.Map // row -> time
	pair := func(mine, other *sync.Map, row uuid.UUID, now time.Time) (time.Time, bool) {
		mine.Store(row, now)
		t, ok := other.Load(row)
		if !ok {
			return time.Time{}, false
		}
		return t.(time.Time), true
	}
	began := time.Now()
	counts := func(now time.Time) bool { return now.Sub(began) > warmUp }
	rt, err := triggers.New(triggers.Config{Brokers: d.Kafka})
	if err != nil {
		b.Fatal(err)
	}
	var seen sync.Map
	err = rt.On("trips", "BASE", "bench", func(_ context.Context, cell cellog.Cell) error {
		now := time.Now()
		if _, again := seen.LoadOrStore(cell.Row, true); again {
			return nil
		}
		// A trigger may start before the put's answer has reached its client:
		// that is no lag, and counts as zero.
		if at, ok := pair(&started, &answered, cell.Row, now); ok && counts(at) {
			trigger.add(now.Sub(at))
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), length+warmUp+30*time.Second)
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	<-rt.Running()

	var wg sync.WaitGroup
	var failures sync.Map
	began = time.Now()
	n := int(float64(rate) * (length + warmUp).Seconds())
	warm := int(float64(rate) * warmUp.Seconds())
	var before map[string]time.Duration
	for first := 0; first < n; first += batch {
		if before == nil && first >= warm {
			before = d.cpu(b)
		}
		due := began.Add(time.Duration(float64(first) / float64(rate) * float64(time.Second)))
		time.Sleep(time.Until(due))
		wg.Go(func() {
			puts := make([]cellog.Put, batch)
			for i := range puts {
				puts[i] = trip(first + i)
			}
			sent := time.Now()
			if err := send(ctx, c, puts); err != nil {
				failures.Store(err.Error(), true)
				return
			}
			now := time.Now()
			if counts(now) {
				put.add(now.Sub(sent))
				late.add(sent.Sub(due))
			}
			for i, p := range puts {
				if _, ok := pair(&answered, &started, p.Row, now); ok && counts(now) {
					trigger.add(0)
				}
				if (first+i)%probeEvery == 0 {
					wg.Go(func() {
						if err := untilIndexed(ctx, c, p.Row); err != nil {
							failures.Store(err.Error(), true)
						} else if counts(now) {
							index.add(time.Since(now))
						}
					})
				}
			}
		})
	}
	used := d.cpu(b)
	for who, t := range used {
		b.ReportMetric(float64((t-before[who]).Microseconds())/float64(n-warm), who+"-cpu-µs/cell")
	}
	wg.Wait()
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		all := true
		answered.Range(func(row, _ any) bool {
			_, all = started.Load(row)
			return all
		})
		if all {
			break
		}
		if time.Now().After(limit) {
			b.Fatal("the trigger has not seen every cell after 20 s")
		}
	}
	cancel()
	if err := <-ran; err != nil {
		b.Fatal(err)
	}
	failures.Range(func(err, _ any) bool {
		b.Error(err)
		return true
	})
	put.report(b, "put")
	trigger.report(b, "trigger")
	index.report(b, "index")
	late.report(b, "late") // of the load itself: how overloaded the machine is
}

// trip is a cell of about 350 bytes. Its driver is the row's own: one entry in
// the index.
func trip(n int) cellog.Put {
	row := uuid.New()
	return cellog.Put{Key: cellog.Key{Row: row, Column: "BASE", Ref: 1}, Body: fmt.Appendf(nil,
		`{"driver":"%s","n":%d,"pickup":"2019-03-23T20:21:09Z","dropoff":"2019-03-23T20:27:24Z","fare":7.0,"tip":2.15,"total":12.95,"color":"yellow",`+
			`"payment":"credit card","pickup_zone":"Lenox Hill West","dropoff_zone":"UN/Turtle Bay South","pickup_borough":"Manhattan","dropoff_borough":"Manhattan"}`,
		driverOf(row), n)}
}

// driverOf is another uuid for each row, so mostly of another shard.
func driverOf(row uuid.UUID) uuid.UUID { return uuid.NewSHA1(row, nil) }

// send puts one cell by itself, more as one batch.
func send(ctx context.Context, c *client.Client, puts []cellog.Put) error {
	if len(puts) == 1 {
		_, err := c.Put(ctx, "trips", puts[0])
		return err
	}
	results, err := c.PutBatch(ctx, "trips", puts)
	for i := range results {
		err = errors.Join(err, results[i].Err)
	}
	return err
}

// untilIndexed asks the index until it has the row's trip. Each look comes
// after an eighth of the time waited so far, but at least 2 ms: so the looks,
// which are load too, stay few and the answer is late by that much at most.
func untilIndexed(ctx context.Context, c *client.Client, row uuid.UUID) error {
	q := url.Values{"driver": {driverOf(row).String()}}
	for began := time.Now(); ctx.Err() == nil; {
		raw, err := c.IndexQuery(ctx, "trips", "driver_index", q)
		if err != nil {
			return err
		}
		var page struct{ Entries []json.RawMessage }
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		if len(page.Entries) > 0 {
			return nil
		}
		time.Sleep(max(2*time.Millisecond, time.Since(began)/8))
	}
	return ctx.Err()
}
