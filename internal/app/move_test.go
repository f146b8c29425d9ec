package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/storage"
)

// moveSteps are the failpoints between the steps of a move, in their order.
var moveSteps = []string{
	"publish/disown-before-end", "move/disowned", "move/prepared", "move/page-copied", "move/copied", "move/closed", "move/final", "move/rest-copied",
	"move/copy-claimed", "move/indexes-copied", "move/arrived", "move/replicated", "move/before-hand-over", "publish/hand-over-before-end", "move/handed-over",
	"publish/before-take-over", "publish/take-over-before-end", "move/taken-over", "move/opened",
}

// moving is everything that a test of moves needs.
type moving struct {
	cfg    *config.Config
	env    Env
	worker *Worker
	tails  *Tailers
	client *client.Client

	mu     sync.Mutex
	bodies map[cellog.Key]string // acknowledged
	failed int                   // puts that were not
}

// newMoving runs all roles over two clusters, and puts cells until the test's
// end.
func newMoving(t *testing.T, load bool) *moving {
	t.Helper()
	// The tests of what readers are told wait for the whole of it.
	whole := moveNotice
	moveNotice = 0
	t.Cleanup(func() { moveNotice = whole })
	m := &moving{cfg: configuration(t, 2), bodies: map[cellog.Key]string{}}
	m.env = Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "error"})}
	ctx := t.Context()
	if err := CreateDatastore(ctx, m.cfg, m.env, Create{Name: "trips", Shards: 4, Grant: true}); err != nil {
		t.Fatal(err)
	}
	var err error
	if m.worker, err = NewWorker(m.cfg, m.env); err != nil {
		t.Fatal(err)
	}
	tl, err := NewTailers(m.cfg, m.env)
	if err != nil {
		t.Fatal(err)
	}
	m.tails = tl
	x, err := NewIndexer(m.cfg, m.env)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Role{m.worker, tl, x} {
		if err := r.Start(ctx); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := r.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if m.client, err = client.New(client.Config{URLs: []string{"http://" + m.worker.Addr()}, AttemptTimeout: 30 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.client.Close)
	if load {
		run, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for run.Err() == nil {
					m.put(run)
					select { // gently: several helpers share this machine
					case <-run.Done():
					case <-time.After(5 * time.Millisecond):
					}
				}
			})
		}
		t.Cleanup(func() { cancel(); wg.Wait() })
	}
	return m
}

// put puts a cell and journals the answer.
func (m *moving) put(ctx context.Context) {
	key := cellog.Key{Row: uuid.New(), Column: []string{"BASE", "STATUS"}[time.Now().UnixNano()%2], Ref: 1}
	body := fmt.Sprintf(`{"driver":%q,"n":%d}`, uuid.New(), time.Now().UnixNano())
	_, err := m.client.Put(ctx, "trips", cellog.Put{Key: key, Body: []byte(body)})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.bodies[key] = body
	} else {
		m.failed++
	}
}

// grow waits until n more cells are acknowledged.
func (m *moving) grow(t *testing.T, n int) {
	t.Helper()
	m.mu.Lock()
	from := len(m.bodies)
	m.mu.Unlock()
	waitFor(t, time.Minute, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.bodies) < from+n {
			return fmt.Errorf("%d cells acknowledged, want %d more than %d", len(m.bodies), n, from)
		}
		return nil
	})
}

// check demands every acknowledged cell, once, in order, and all indexes.
func (m *moving) check(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, body := range m.bodies {
		waitFor(t, 30*time.Second, func() error { // one answered 202 may have to be drained first
			cell, err := m.client.Get(t.Context(), "trips", key, client.ReadOptions{})
			if err == nil && string(cell.Body) != body {
				t.Fatalf("cell %s is %s, want %s", key, cell.Body, body)
			}
			return err
		})
	}
	waitFor(t, 2*time.Minute, func() error {
		rep, err := Verify(t.Context(), m.cfg, m.env, "trips", verify.Config{Wait: 2 * time.Second})
		if err != nil {
			return err
		}
		if !rep.Clean() || int(rep.Records) < len(m.bodies) {
			return fmt.Errorf("%+v, %d acknowledged", rep, len(m.bodies))
		}
		return nil
	})
	t.Logf("%d cells acknowledged, %d puts were not", len(m.bodies), m.failed)
}

// moveUntil moves until the failpoint, where it dies.
func (m *moving) moveUntil(ctx context.Context, req Move) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(error); !ok || !errors.Is(e, errKilled) {
				panic(p)
			}
			err = errKilled
		}
	}()
	_, err = MoveShard(ctx, m.cfg, m.env, req)
	return err
}

// A mover is killed between any two of its steps, under load, there and back. The
// same command again finishes it: every acknowledged cell is there, once, in the
// order of its shard, and in its index.
func TestMoverKilledAtEachStep(t *testing.T) {
	m := newMoving(t, true)
	to := "c1"
	for _, step := range moveSteps {
		m.grow(t, 60)
		died, undo := dieAt(step)
		req := Move{Datastore: "trips", Shard: 0, To: to}
		err := m.moveUntil(t.Context(), req)
		undo()
		// Only the first time a cluster gets the shard its tailer must be told.
		if !died() && (step != "publish/disown-before-end" || err != nil) || died() && !errors.Is(err, errKilled) {
			t.Fatalf("%s: not killed there: %v; tailers: %+v", step, err, m.tails.Status())
		}
		out, err := MoveShard(t.Context(), m.cfg, m.env, req)
		if err != nil && !errors.Is(err, ErrOnCluster) {
			t.Fatalf("%s: the next mover: %v", step, err)
		}
		t.Logf("%s: epoch %d, %d cells, %d copied, closed %.2f s", step, out.Epoch, out.Cells, out.Copied, out.ClosedSeconds)
		waitFor(t, 20*time.Second, func() error {
			r, err := m.worker.store.Route("trips", 0)
			if err == nil && r.Cluster != to {
				err = fmt.Errorf("the route is %v", r)
			}
			return err
		})
		to = map[string]string{"c0": "c1", "c1": "c0"}[to]
	}
	m.check(t)
}

// A move that was closed and not handed over is undone, or voided by a promotion
// of the cluster that has the shard; a promotion of the one that gets it, at
// whatever moment, takes the shard with it.
func TestMoveAndPromotions(t *testing.T) {
	m := newMoving(t, true)
	whole := openAfter
	openAfter = 300 * time.Millisecond
	defer func() { openAfter = whole }()
	ctx := t.Context()
	until := func(step, to string) {
		t.Helper()
		m.grow(t, 40)
		died, undo := dieAt(step)
		err := m.moveUntil(ctx, Move{Datastore: "trips", Shard: 0, To: to})
		undo()
		if !died() {
			t.Fatalf("%s: not killed there: %v", step, err)
		}
	}
	finish := func(to string) {
		t.Helper()
		if _, err := MoveShard(ctx, m.cfg, m.env, Move{Datastore: "trips", Shard: 0, To: to}); err != nil && !errors.Is(err, ErrOnCluster) {
			t.Fatal(err)
		}
		m.grow(t, 40)
	}
	promote := func(cluster string) { // always the other node
		t.Helper()
		all, err := opened(ctx, m.cfg, m.env)
		if err != nil {
			t.Fatal(err)
		}
		node := map[string]string{cluster + "-n0": cluster + "-n1", cluster + "-n1": cluster + "-n0"}[all[cluster].Node]
		out, err := PromoteCluster(ctx, m.cfg, m.env, Promote{Cluster: cluster, Node: node})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", out)
	}
	until("move/replicated", "c1")
	for range 2 {
		if _, err := MoveShard(ctx, m.cfg, m.env, Move{Datastore: "trips", Shard: 0, Undo: true}); err != nil {
			t.Fatal(err)
		}
	}
	m.grow(t, 40)
	until("move/final", "c1")
	promote("c0") // voids it
	m.grow(t, 40)
	finish("c1")
	until("move/handed-over", "c0")
	if _, err := MoveShard(ctx, m.cfg, m.env, Move{Datastore: "trips", Shard: 0, Undo: true}); err == nil {
		t.Error("a move that was handed over was undone")
	}
	promote("c0") // takes it over
	finish("c0")
	until("move/arrived", "c1")
	promote("c1") // and does not get it
	finish("c1")
	until("move/taken-over", "c0")
	promote("c0")
	finish("c0")
	m.check(t)
}

// Two movers of one shard do no harm, whatever wins.
func TestTwoMovers(t *testing.T) {
	m := newMoving(t, true)
	for _, to := range []string{"c1", "c0"} {
		m.grow(t, 100)
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = MoveShard(t.Context(), m.cfg, m.env, Move{Datastore: "trips", Shard: 2, To: to})
			})
		}
		wg.Wait()
		t.Log(errs)
		if _, err := MoveShard(t.Context(), m.cfg, m.env, Move{Datastore: "trips", Shard: 2, To: to}); err != nil && !errors.Is(err, ErrOnCluster) {
			t.Fatal(err)
		}
	}
	m.check(t)
}

func TestMoveRefuses(t *testing.T) {
	m := newMoving(t, false)
	ctx := t.Context()
	for _, c := range []struct {
		req  Move
		want string
		is   error
	}{
		{Move{Datastore: "nobody", Shard: 0, To: "c1"}, "nobody", storage.ErrUnknownDatastore},
		{Move{Datastore: "trips", Shard: 4, To: "c1"}, "4 of 4", storage.ErrUnknownShard},
		{Move{Datastore: "trips", Shard: 0, To: "c9"}, "want one of c0, c1", nil},
		{Move{Datastore: "trips", Shard: 0, To: "c0"}, "already", ErrOnCluster},
	} {
		_, err := MoveShard(ctx, m.cfg, m.env, c.req)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%+v: %v, want %q", c.req, err, c.want)
		}
	}
	out, err := MoveShard(ctx, m.cfg, m.env, Move{Datastore: "trips", Shard: 0, To: "c1", DryRun: true})
	if err != nil || !out.DryRun || out.From != "c0" {
		t.Errorf("%+v %v", out, err)
	}
	// A shard without a cell moves too.
	if out, err = MoveShard(ctx, m.cfg, m.env, Move{Datastore: "trips", Shard: 0, To: "c1"}); err != nil || out.Epoch != 2 || out.Cells != 0 {
		t.Errorf("%+v %v", out, err)
	}
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(m.cfg, m.env, "test"), Cluster: "c0", Prefix: m.cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	claim, err := pub.Claim(ctx, publish.ClaimRequest{Mark: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Close(ctx)
	for _, req := range []Move{{Datastore: "trips", Shard: 2, To: "c1"}, {Datastore: "trips", Shard: 1, To: "c0"}} {
		if _, err := MoveShard(ctx, m.cfg, m.env, req); err == nil || !strings.Contains(err.Error(), "cellog cluster promote c0") {
			t.Errorf("%+v: %v", req, err)
		}
	}
}
