package triggers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/triggers"
)

func rowKey(n int) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(n), byte(n >> 8)}) }

// cellsOf makes the next cells of rows, in turn: cell i is the i/rows-th of
// its row.
func cellsOf(rows, from, to int) []cellog.Cell {
	var cs []cellog.Cell
	for i := from; i < to; i++ {
		cs = append(cs, cellog.Cell{
			Key:       cellog.Key{Row: rowKey(i % rows), Column: "BASE", Ref: cellog.RefKey(i / rows)},
			Datastore: "trips", Body: fmt.Appendf(nil, `{"n":%d}`, i),
		})
	}
	return cs
}

// ledger checks what triggers promise, over all processes.
type ledger struct {
	t *testing.T

	mu       sync.Mutex
	done     map[cellog.Key]int
	running  map[uuid.UUID]string
	overlaps bool // a row may be begun elsewhere while it runs: its process was killed
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, done: make(map[cellog.Key]int), running: make(map[uuid.UUID]string)}
}

func (l *ledger) begin(who string, k cellog.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, runs := l.running[k.Row]; runs && !l.overlaps {
		l.t.Errorf("%s begins %s while %s works on the row", who, k, other)
	}
	l.running[k.Row] = who
	before := k
	if before.Ref--; before.Ref >= 0 && l.done[before] == 0 {
		l.t.Errorf("%s begins %s, but the one before is not finished", who, k)
	}
}

func (l *ledger) end(k cellog.Key, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, k.Row)
	if ok {
		l.done[k]++
	}
}

func (l *ledger) finished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done)
}

func (l *ledger) repeats() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, times := range l.done {
		n += times - 1
	}
	return n
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 60 s for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// start runs a Runtime with one trigger; stop ends it.
func start(t testing.TB, cfg place, fn triggers.Func, opts ...triggers.Option) (rt *triggers.Runtime, stop func()) {
	t.Helper()
	rt, err := triggers.New(triggers.Config{Brokers: cfg.kafka.Addrs, Prefix: cfg.prefix, SessionTimeout: session, Drain: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	opts = append([]triggers.Option{triggers.Backoff(time.Millisecond, 50*time.Millisecond)}, opts...)
	if err := rt.On("trips", "BASE", "test", fn, opts...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return rt, stop
}

// Members come and go in good order while functions fail now and then: every
// cell is finished, rows stay in order, and never do two members work on one.
func TestMembersComeAndGo(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	cfg := broker(t)
	w := newWriter(t, cfg)
	l := newLedger(t)
	var failures atomic.Int64
	fn := func(who string) triggers.Func {
		return func(ctx context.Context, c cellog.Cell) error {
			l.begin(who, c.Key)
			d := time.Duration(rand.IntN(2000)) * time.Microsecond
			if rand.IntN(200) == 0 {
				d = 100 * time.Millisecond // a member that leaves must wait for it
			}
			time.Sleep(d)
			if rand.IntN(20) == 0 {
				failures.Add(1)
				l.end(c.Key, false)
				if rand.IntN(2) == 0 {
					panic("planned")
				}
				return errors.New("planned")
			}
			l.end(c.Key, true)
			return nil
		}
	}
	const rows, n = 60, 6000
	var stops []func()
	for i := 0; i < n; i += 500 {
		if err := w.write(cfg.base, cellsOf(rows, i, i+500)...); err != nil {
			t.Fatal(err)
		}
		if len(stops) < 2 || rnd.IntN(2) == 0 {
			_, stop := start(t, cfg, fn(fmt.Sprint("member ", i)))
			stops = append(stops, stop)
		} else {
			k := rnd.IntN(len(stops))
			stops[k]()
			stops = append(stops[:k], stops[k+1:]...)
		}
		before := l.finished()
		waitFor(t, "some progress", func() bool { return l.finished() > before || l.finished() == i+500 })
	}
	waitFor(t, "all cells", func() bool { return l.finished() == n })
	for _, stop := range stops {
		stop()
	}
	// Those finished behind a row that was not done when its member left.
	t.Logf("%d calls failed on purpose, %d cells were finished again", failures.Load(), l.repeats())
}

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

// The broker goes away and comes back: the trigger goes on by itself.
func TestBrokerRestart(t *testing.T) {
	cfg := broker(t)
	w := newWriter(t, cfg)
	l := newLedger(t)
	l.overlaps = true // a session may end while a row is being handled
	_, stop := start(t, cfg, func(_ context.Context, c cellog.Cell) error {
		l.begin("it", c.Key)
		defer l.end(c.Key, true)
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		return nil
	})
	const rows, n = 30, 3000
	for i := 0; i < n; i += n / 3 {
		if err := w.write(cfg.base, cellsOf(rows, i, i+n/3)...); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "some cells", func() bool { return l.finished() > i+n/10 })
		if i+n/3 < n {
			cfg.broker.Restart(t)
			w.reopen()
		}
	}
	waitFor(t, "all cells", func() bool { return l.finished() == n })
	stop()
	t.Logf("%d cells were finished again", l.repeats())
}

// A row that fails waits alone, through panics, and goes on when it is mended.
func TestFailingRowWaitsAlone(t *testing.T) {
	cfg := broker(t)
	w := newWriter(t, cfg)
	l := newLedger(t)
	var mended atomic.Bool
	var attempts atomic.Int64
	var generation atomic.Int64
	_, stop := start(t, cfg, func(ctx context.Context, c cellog.Cell) error {
		l.begin("it", c.Key)
		if c.Row == rowKey(7) && !mended.Load() {
			l.end(c.Key, false)
			attempts.Store(int64(triggers.Attempt(ctx)))
			panic("the card gateway is gone")
		}
		generation.Store(triggers.Generation(ctx))
		l.end(c.Key, true)
		return nil
	})
	const rows, n = 20, 1000
	if err := w.write(cfg.base, cellsOf(rows, 0, n)...); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the other rows", func() bool { return l.finished() == n-n/rows })
	waitFor(t, "some attempts", func() bool { return attempts.Load() > 5 })
	if generation.Load() < 1 {
		t.Errorf("generation %d, want at least 1", generation.Load())
	}
	stop() // a restart does not lose it
	mended.Store(true)
	_, stop = start(t, cfg, func(ctx context.Context, c cellog.Cell) error {
		l.begin("it", c.Key)
		defer l.end(c.Key, true)
		return nil
	})
	waitFor(t, "the row", func() bool { return l.finished() == n })
	stop()
}

func TestFrom(t *testing.T) {
	cfg := broker(t)
	w := newWriter(t, cfg)
	if err := w.write(cfg.base, cellsOf(5, 0, 10)...); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	waitFor(t, "the clock", func() bool { return time.Since(at) > 3*time.Millisecond })
	at = time.Now()
	if err := w.write(cfg.base, cellsOf(5, 10, 20)...); err != nil {
		t.Fatal(err)
	}
	rt, err := triggers.New(triggers.Config{Brokers: cfg.kafka.Addrs, Prefix: cfg.prefix, SessionTimeout: session})
	if err != nil {
		t.Fatal(err)
	}
	var counts [3]atomic.Int64
	for i, o := range []triggers.Option{triggers.FromZero(), triggers.FromTime(at), triggers.FromLatest()} {
		err := rt.On("trips", "BASE", fmt.Sprint("from-", i), func(context.Context, cellog.Cell) error { counts[i].Add(1); return nil }, o)
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	waitFor(t, "zero and time", func() bool { return counts[0].Load() == 20 && counts[1].Load() == 10 })
	waitFor(t, "latest", func() bool {
		// It may not have looked for the latest yet: write until it sees one.
		if err := w.write(cfg.base, cellsOf(1, 100+w.count(cfg.base), 101+w.count(cfg.base))...); err != nil {
			t.Fatal(err)
		}
		return counts[2].Load() > 0
	})
	waitFor(t, "all", func() bool { return counts[0].Load() == counts[1].Load()+10 && counts[2].Load() <= counts[0].Load()-20 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestLag(t *testing.T) {
	cfg := broker(t)
	w := newWriter(t, cfg)
	release := make(chan struct{})
	rt, stop := start(t, cfg, func(context.Context, cellog.Cell) error { <-release; return nil })
	if _, known := rt.Lag()["test"]; known {
		t.Error("a lag is known before anything came")
	}
	adm, err := kafka.NewAdmin(cfg.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	beats := cellog.HeartbeatsTopicName(cfg.prefix)
	if _, err := adm.EnsureTopic(t.Context(), kafka.HeartbeatsTopic(beats)); err != nil {
		t.Fatal(err)
	}
	beat := func(cluster string, ago time.Duration) {
		t.Helper()
		p, err := kafka.OpenProducer(t.Context(), kafka.ProducerConfig{Config: cfg.kafka})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		v := heartbeat.Marshal(heartbeat.Beat{Cluster: cluster, Mark: "m", Beat: 1, WrittenAt: time.Now().Add(-ago)})
		if err := errors.Join(p.Begin(t.Context()), p.Send(t.Context(), kafka.NewMessage(beats, 0, record.Record{Value: v, Time: time.Now()})), p.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	between := func(from, to time.Duration) func() bool {
		return func() bool { lag, ok := rt.Lag()["test"]; return ok && lag >= from && lag < to }
	}
	beat("a", time.Second)
	waitFor(t, "a lag of a second", between(time.Second, 5*time.Second))
	beat("b", 20*time.Second)
	waitFor(t, "the cluster that is behind", between(20*time.Second, 30*time.Second))
	beat("b", 0)
	waitFor(t, "it to catch up", between(time.Second, 10*time.Second))
	if err := w.write(cfg.base, cellsOf(1, 0, 1)...); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the slow cell", func() bool { beat("a", 0); beat("b", 0); return between(500*time.Millisecond, time.Minute)() })
	close(release)
	waitFor(t, "it to be done", func() bool { beat("a", 0); beat("b", 0); return between(0, 300*time.Millisecond)() })
	stop()
}

func TestRegistration(t *testing.T) {
	rt, err := triggers.New(triggers.Config{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	fn := func(context.Context, cellog.Cell) error { return nil }
	for _, bad := range []error{
		rt.On("Trips", "BASE", "a", fn), rt.On("trips", "_BASE", "a", fn), rt.On("trips", "BASE", "", fn), rt.On("trips", "BASE", "1a", fn),
		rt.On("trips", "BASE", "a b", fn), rt.On("trips", "BASE", strings.Repeat("a", 101), fn), rt.On("trips", "BASE", "a", nil),
		rt.On("trips", "BASE", "a", fn, triggers.Parallel(-1)), rt.On("trips", "BASE", "a", fn, triggers.Backoff(2, 1)),
	} {
		if bad == nil {
			t.Error("accepted")
		}
	}
	if err := errors.Join(rt.On("trips", "BASE", "a", fn), rt.On("trips", triggers.AllColumns, "b", fn)); err != nil {
		t.Error(err)
	}
	if err := rt.On("trips", "STATUS", "a", fn); err == nil {
		t.Error("a name was accepted twice")
	}
	if _, err := triggers.New(triggers.Config{}); err == nil {
		t.Error("no broker was accepted")
	}
}
