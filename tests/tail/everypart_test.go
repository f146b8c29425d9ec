package tail

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage/mysql"
	"github.com/cellog/cellog/tests/harness"
)

// parts is a rig whose tailer reaches the server and the broker over links.
type parts struct {
	*rig
	t     *testing.T
	rnd   *rand.Rand
	mysql *harness.Link
	kafka *harness.Link
	pub   *publish.Publisher
	child *child // streams, if not nil
}

func newParts(t *testing.T) *parts {
	p := &parts{rig: newRig(t, mysqltest.Start(t), 4), t: t, rnd: seeded(t)}
	p.mysql = harness.NewLink(t, "tailer", "mysql", p.node.Addr())
	p.kafka = harness.NewKafkaLink(t, "tailer", "broker", p.rig.kafka.Addrs[0])
	var err error
	if p.pub, err = publish.New(publish.Config{Kafka: p.rig.kafka, Cluster: p.cluster, Prefix: p.prefix}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pub.Close)
	return p
}

// start starts a tailer that streams; with a point it kills itself there.
func (p *parts) start(point string, nth int) *child {
	p.t.Helper()
	spec := p.spec()
	spec.Account.Addr, spec.Brokers = p.mysql.Addr(), []string{p.kafka.Addr()}
	if p.rnd.IntN(4) > 0 && p.child == nil {
		spec.Mark = "same" // need not stand by for itself; two at a time that are the same would fence each other for ever
	}
	want := "streaming"
	if point != "" {
		spec.Point, spec.Nth, spec.Signal = point, nth, int(syscall.SIGKILL)
		want = "signal"
	}
	c := startChild(p.t, spec)
	if !c.wait(30*time.Second, want) {
		p.t.Fatalf("no %q from a tailer with %q:\n%s", want, point, c.output())
	}
	return c
}

// end kills the tailer that streams.
func (p *parts) end() {
	if p.child != nil {
		p.child.kill()
		p.child = nil
	}
}

// write puts small transactions until ctx ends. When the server is gone, it waits
// until it is there, and looks which of them it has.
func (p *parts) write(ctx context.Context, rnd *rand.Rand) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			shard := cellog.ShardID(rnd.IntN(p.shards))
			if p.put(context.Background(), shard, 1+rnd.IntN(6), rnd) != nil && !p.resolve(ctx, shard) {
				return
			}
			select {
			case <-time.After(3 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return done
}

// resolve notes what a put whose answer was lost has stored.
func (p *parts) resolve(ctx context.Context, shard cellog.ShardID) bool {
	k := cdc.ShardKey{Datastore: p.store, Shard: shard}
	p.mu.Lock()
	after := cellog.AddedID(len(p.sent[k]))
	p.mu.Unlock()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		// The lock says that the lost session is over.
		tx, err := p.db.BeginTx(context.Background(), nil)
		if err == nil {
			_, err = tx.Exec("SELECT 1 FROM `" + k.String() + "`.shard_log WHERE id = 1 FOR UPDATE")
			var cells []cellog.Cell
			if err == nil {
				cells, err = mysql.ReadEntity(context.Background(), p.db, p.store, shard, after, 100)
			}
			err = errors.Join(err, tx.Rollback())
			for i := range cells {
				var bad error
				cells[i].Body, bad = body.AppendJSON(nil, cells[i].Body, body.MaxBytes)
				err = errors.Join(err, bad)
			}
			if err == nil {
				p.mu.Lock()
				p.sent[k] = append(p.sent[k], cells...)
				p.mu.Unlock()
				return true
			}
		}
		if ctx.Err() != nil || time.Since(began) > time.Minute {
			p.t.Errorf("what %s has is not known: %v", k, err)
			return false
		}
	}
}

// flows waits until all that is stored by now is published, and some of what
// comes after it.
func (p *parts) flows(after string) {
	p.t.Helper()
	want := p.total() + 10
	waitFor(p.t, time.Minute, func() error {
		pos, err := p.pub.Positions(p.t.Context())
		if err != nil {
			return err
		}
		n := 0
		for _, s := range pos.Shards {
			n += int(s.Last)
		}
		if n < want {
			return fmt.Errorf("after %q: %d cells published, want %d", after, n, want)
		}
		return nil
	})
}

// broken has a link in a mode for a while.
func (p *parts) broken(l *harness.Link, m harness.Mode) {
	l.Set(m)
	time.Sleep(time.Duration(50+p.rnd.IntN(1000)) * time.Millisecond)
	l.Set(harness.Pass)
}

// crash does one thing to one part and returns its name.
func (p *parts) crash() string {
	p.t.Helper()
	kind := p.rnd.IntN(10)
	if kind < 3 { // at a point between two steps
		point, nth := points[p.rnd.IntN(len(points))], 1
		switch point {
		case "tailer/sent":
			nth = 1 + p.rnd.IntN(40)
		case "tailer/before-flush", "tailer/flushed", "publish/before-end", "tailer/committed":
			nth = 1 + p.rnd.IntN(8)
		}
		p.end()
		p.start(point, nth).kill()
		p.child = p.start("", 0)
		return point
	}
	if p.child == nil {
		p.child = p.start("", 0)
	}
	time.Sleep(time.Duration(p.rnd.IntN(100)) * time.Millisecond) // crashes come at any moment
	switch kind {
	case 3:
		p.end()
		p.child = p.start("", 0)
		return "kill tailer"
	case 4:
		if err := syscall.Kill(p.child.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
			p.t.Fatal(err)
		}
		second := p.start("", 0)
		if err := syscall.Kill(p.child.cmd.Process.Pid, syscall.SIGCONT); err != nil {
			p.t.Fatal(err)
		}
		p.flows("a frozen tailer")
		p.child.kill()
		p.child = second
		return "freeze tailer"
	case 5:
		p.broker.Kill(p.t)
		p.broker.Restart(p.t)
		return "kill broker"
	case 6:
		p.node.Kill()
		p.node.Restart(p.t)
		waitFor(p.t, 30*time.Second, func() error { // the pool has sessions of the server that is gone
			_, err := p.db.Exec("SET GLOBAL read_only = OFF")
			return err
		})
		return "kill mysqld"
	case 7:
		p.broken(p.mysql, harness.Cut)
		return "cut mysql"
	case 8:
		l, name := p.mysql, "silent mysql"
		if p.rnd.IntN(2) == 0 {
			l, name = p.kafka, "silent broker"
		}
		p.broken(l, []harness.Mode{harness.Silent, harness.DropAsks, harness.DropAnswers}[p.rnd.IntN(3)])
		return name
	default:
		p.broken(p.kafka, harness.Cut)
		return "cut broker"
	}
}

// crashes is how many come: CELLOG_TEST_CRASHES, or few.
func crashes(t *testing.T) int {
	text := os.Getenv("CELLOG_TEST_CRASHES")
	if text == "" {
		return kills(15)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("CELLOG_TEST_CRASHES=%s: want a number from 1 on", text)
	}
	return n
}

func TestCrashesOfEveryPart(t *testing.T) {
	p := newParts(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := p.write(ctx, rand.New(rand.NewPCG(p.rnd.Uint64(), 1)))
	defer func() { cancel(); <-done }()
	killed := make(map[string]int)
	for range crashes(t) {
		name := p.crash()
		killed[name]++
		p.flows(name)
	}
	t.Logf("killed %v", killed)
	cancel()
	<-done
	p.waitDrained(t, 2*time.Minute)
	p.end()
	if rep := p.read(t); !rep.clean() || rep.records != p.total() {
		t.Errorf("%+v of %d", rep, p.total())
	} else {
		t.Logf("%d cells, each once", rep.records)
	}
}
