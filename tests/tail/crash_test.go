package tail

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
)

// points are the places between two steps at which a tailer is killed.
var points = []string{
	"tailer/before-open", "tailer/opened", "tailer/marked", "tailer/sent",
	"tailer/before-flush", "tailer/flushed", "publish/before-end", "tailer/committed",
}

// write puts small transactions until ctx ends, at about rate cells/s.
func (r *rig) write(ctx context.Context, t testing.TB, rnd *rand.Rand, pause time.Duration) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := r.put(context.Background(), cellog.ShardID(rnd.IntN(r.shards)), 1+rnd.IntN(6), rnd); err != nil {
				t.Error("put:", err)
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}()
	return done
}

// crash kills one tailer after the other, while cells are put.
func crash(t *testing.T, r *rig, rnd *rand.Rand, kills int, points []string, idempotent bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := r.write(ctx, t, rand.New(rand.NewPCG(rnd.Uint64(), 1)), 3*time.Millisecond)
	defer func() { cancel(); <-done }()
	killed := make(map[string]int)
	for range kills {
		spec := r.spec()
		spec.Idempotent = idempotent
		if rnd.IntN(4) > 0 {
			spec.Mark = "same" // need not stand by for itself
		}
		name := "at random"
		if rnd.IntN(4) > 0 {
			name = points[rnd.IntN(len(points))]
			spec.Point, spec.Nth, spec.Signal = name, 1, int(syscall.SIGKILL)
			switch name {
			case "tailer/sent":
				spec.Nth = 1 + rnd.IntN(40)
			case "tailer/before-flush", "tailer/flushed", "publish/before-end", "tailer/committed":
				spec.Nth = 1 + rnd.IntN(8)
			}
		}
		c := startChild(t, spec)
		if spec.Point == "" {
			c.wait(3*time.Second, "streaming")
			select {
			case <-time.After(time.Duration(rnd.IntN(200)) * time.Millisecond):
			case <-c.done:
			}
		} else if !c.wait(10*time.Second, "signal") {
			t.Logf("%s was not hit:\n%s", name, c.output())
		}
		c.kill()
		killed[name]++
	}
	t.Logf("killed %v", killed)
}

func kills(most int) int {
	if testing.Short() {
		return most / 5
	}
	return most
}

func TestKilledTailersLeaveNeitherHoleNorDuplicate(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 4)
	rnd := seeded(t)
	crash(t, r, rnd, kills(60), points, false)
	c := startChild(t, r.spec())
	r.waitDrained(t, 2*time.Minute)
	c.kill()
	if rep := r.read(t); !rep.clean() || rep.records != r.total() {
		t.Errorf("%+v of %d", rep, r.total())
	} else {
		t.Logf("%d cells, each once", rep.records)
	}
}

// The same with a producer that is idempotent only must fail, or the test
// above shows nothing.
func TestKilledIdempotentTailersAreCaught(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 4)
	rnd := seeded(t)
	crash(t, r, rnd, 8, []string{"tailer/flushed"}, true)
	spec := r.spec()
	spec.Idempotent = true
	c := startChild(t, spec)
	waitFor(t, 2*time.Minute, func() error {
		rep := r.read(t)
		if rep.duplicates == 0 {
			return fmt.Errorf("no duplicate among %d records", rep.records)
		}
		return nil
	})
	c.kill()
}

// frozen freezes a tailer at a point, lets a second one take over, and thaws
// the first.
func frozen(t *testing.T, r *rig, rnd *rand.Rand, point string, nth int, idempotent bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := r.write(ctx, t, rand.New(rand.NewPCG(rnd.Uint64(), 1)), 3*time.Millisecond)
	defer func() { cancel(); <-done }()
	spec := r.spec()
	spec.Idempotent = idempotent
	spec.Point, spec.Nth, spec.Signal = point, nth, int(syscall.SIGSTOP)
	first := startChild(t, spec)
	if !first.wait(15*time.Second, "signal") {
		t.Fatalf("%s was not hit:\n%s", point, first.output())
	}
	spec.Point = ""
	second := startChild(t, spec)
	if !second.wait(15*time.Second, "streaming") {
		t.Fatalf("the second did not take over from one frozen at %s:\n%s", point, second.output())
	}
	before := r.total()
	waitFor(t, 2*time.Minute, func() error {
		if n := r.total(); n < before+50 {
			return fmt.Errorf("%d cells put", n-before)
		}
		return nil
	})
	if err := syscall.Kill(first.cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// The thawed one must notice, start anew, and stand by.
	before = r.total()
	waitFor(t, 2*time.Minute, func() error {
		if n := r.total(); n < before+100 {
			return fmt.Errorf("%d cells put", n-before)
		}
		return nil
	})
	cancel()
	<-done
	r.waitDrained(t, 2*time.Minute)
	second.kill()
	first.kill()
}

func TestFrozenAndThawedTailersLeaveNeitherHoleNorDuplicate(t *testing.T) {
	rnd := seeded(t)
	r := newRig(t, mysqltest.Server(t), 4)
	for _, p := range points[1:] {
		frozen(t, r, rnd, p, 1, false)
		if rep := r.read(t); !rep.clean() || rep.records != r.total() {
			t.Fatalf("frozen at %s: %+v of %d", p, rep, r.total())
		}
	}
	t.Logf("%d cells, each once", r.total())
}

func TestFrozenIdempotentTailersAreCaught(t *testing.T) {
	rnd := seeded(t)
	r := newRig(t, mysqltest.Server(t), 4)
	frozen(t, r, rnd, "tailer/flushed", 20, true)
	if rep := r.read(t); rep.duplicates == 0 {
		t.Errorf("no duplicate: %+v", rep)
	}
}
