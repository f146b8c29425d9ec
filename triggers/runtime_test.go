package triggers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
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
			if rand.IntN(400) == 0 {
				d = 800 * time.Millisecond // a member that leaves must wait for it
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
