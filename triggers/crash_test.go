package triggers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/triggers"
)

// Processes are killed in the middle, again and again.
func TestKilledProcesses(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	cfg := broker(t)
	w := newWriter(t, cfg)
	l := newLedger(t)
	l.overlaps = true
	const rows, n = 200, 8000
	if err := w.write(cfg.base, cellsOf(rows, 0, n)...); err != nil {
		t.Fatal(err)
	}
	for round := 0; l.finished() < n; round++ {
		if round > 40 {
			t.Fatalf("%d of %d cells after %d rounds", l.finished(), n, round)
		}
		kill := 500 + rnd.IntN(2500)
		cmd, out := startChild(t, cfg)
		ends := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			what, k, _ := parseLine(t, lines.Text())
			if what == "begin" {
				l.begin(fmt.Sprint("process ", round), k)
				continue
			}
			l.end(k, true)
			if ends++; ends == kill || l.finished() == n {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
	}
	t.Logf("%d cells were finished again after kills", l.repeats())
}

// A member is frozen in the middle, another one takes over and finishes, then
// the first one wakes up. Its late effects carry a lower generation, and it
// takes no commit back.
func TestFrozenProcess(t *testing.T) {
	cfg := broker(t)
	w := newWriter(t, cfg)
	const rows, n = 100, 3000
	if err := w.write(cfg.base, cellsOf(rows, 0, n)...); err != nil {
		t.Fatal(err)
	}
	cmd, out := startChild(t, cfg)
	lines := bufio.NewScanner(out)
	frozen := make(map[uuid.UUID]int64) // the generation that the process had for a row
	read := func() bool {
		ok := lines.Scan()
		if ok {
			if what, k, generation := parseLine(t, lines.Text()); what == "begin" {
				frozen[k.Row] = max(frozen[k.Row], generation)
			}
		}
		return ok
	}
	for range n / 3 {
		if !read() {
			t.Fatal("the process ended")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l := newLedger(t)
	l.overlaps = true
	var mu sync.Mutex
	taken := make(map[uuid.UUID]int64)
	fn := func(ctx context.Context, c cellog.Cell) error {
		mu.Lock()
		defer mu.Unlock()
		taken[c.Row] = triggers.Generation(ctx)
		l.done[c.Key]++
		return nil
	}
	_, stop := start(t, cfg, fn)
	last := make(map[cellog.Key]bool)
	for _, c := range cellsOf(rows, n-rows, n) {
		last[c.Key] = true
	}
	waitFor(t, "the other member to finish", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for k := range last {
			if l.done[k] == 0 {
				return false
			}
		}
		return true
	})
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	late := 0
	for range 8 { // what it had under way
		if !read() {
			break
		}
		late++
	}
	mu.Lock()
	for row, generation := range frozen {
		if taken[row] != 0 && generation >= taken[row] {
			t.Errorf("row %s: the frozen process has generation %d, the one that took over %d", row, generation, taken[row])
		}
	}
	before := len(l.done)
	mu.Unlock()
	if late == 0 || before == 0 {
		t.Error("the process woke up without a word")
	}
	// Both end; whoever comes next finds everything committed.
	stop()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if err := w.write(cfg.base, cellsOf(rows, n, n+rows)...); err != nil {
		t.Fatal(err)
	}
	var again []cellog.Key
	news := 0
	_, stop = start(t, cfg, func(_ context.Context, c cellog.Cell) error {
		mu.Lock()
		defer mu.Unlock()
		if int(c.Ref) < n/rows {
			again = append(again, c.Key)
		} else {
			news++
		}
		return nil
	})
	waitFor(t, "the new cells", func() bool { mu.Lock(); defer mu.Unlock(); return news == rows })
	stop()
	if len(again) > 0 {
		t.Errorf("%d cells came again, %s for one: a commit was taken back", len(again), again[0])
	}
}

func startChild(t *testing.T, cfg place) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+cfg.prefix+"@"+strings.Join(cfg.kafka.Addrs, ","))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it should be dead
	return cmd, out
}

// parseLine reads a line of a child: what it does, with which cell, in which
// generation.
func parseLine(t *testing.T, line string) (what string, k cellog.Key, generation int64) {
	t.Helper()
	fields := strings.Fields(line)
	if len(fields) != 3 {
		t.Fatalf("a child said %q", line)
	}
	k, err := cellog.ParseKey(fields[1])
	if err == nil {
		generation, err = strconv.ParseInt(fields[2], 10, 64)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fields[0], k, generation
}

const childEnv = "CELLOG_TRIGGERS_CHILD"

// child is the process that TestKilledProcesses kills: it says what it does.
func child(env string) {
	prefix, brokers, _ := strings.Cut(env, "@")
	rt, err := triggers.New(triggers.Config{Brokers: strings.Split(brokers, ","), Prefix: prefix, SessionTimeout: session})
	if err == nil {
		var mu sync.Mutex
		say := func(what string, k cellog.Key, generation int64) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(what, k, generation)
		}
		err = rt.On("trips", "BASE", "test", func(ctx context.Context, c cellog.Cell) error {
			say("begin", c.Key, triggers.Generation(ctx))
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			say("end", c.Key, triggers.Generation(ctx))
			return nil
		}, triggers.Parallel(2))
	}
	if err == nil {
		err = rt.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(1)
}
