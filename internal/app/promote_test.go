package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/schemas/position"
)

// steps are the failpoints between the steps of a promotion, in their order.
var steps = []string{
	"publish/claim-initialised", "promote/claimed", "promote/master-stopped", "promote/told", "promote/chosen", "promote/gate-passed",
	"promote/others-final", "promote/closed", "promote/re-pointed", "publish/before-open", "promote/open-in-kafka",
	"promote/terms-loaded", "promote/shard-drained", "promote/drained", "promote/shards-open",
}

// errKilled is what a promoter that dies at a failpoint panics with.
var errKilled = errors.New("killed")

// dieAt lets the process "die" at a failpoint, once.
func dieAt(name string) (died func() bool, undo func()) {
	var mu sync.Mutex
	hit := false
	failpoint.Set(func(at string) bool {
		mu.Lock()
		defer mu.Unlock()
		if at == name && !hit {
			hit = true
			panic(errKilled)
		}
		return false
	})
	return func() bool { mu.Lock(); defer mu.Unlock(); return hit }, func() { failpoint.Set(nil) }
}

// promoteUntil promotes until the failpoint, where it dies.
func promoteUntil(ctx context.Context, cfg *config.Config, env Env, req Promote) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(error); !ok || !errors.Is(e, errKilled) {
				panic(p)
			}
			err = errKilled
		}
	}()
	_, err = PromoteCluster(ctx, cfg, env, req)
	return err
}

// A promoter is killed between any two of its steps. Another one finishes or
// undoes it: the cluster has one master, and every acknowledged cell is there,
// once, in the order of its shard.
func TestPromoterKilledAtEachStep(t *testing.T) {
	cfg := configuration(t, 2)
	cfg.Indexer.Schemas = ""
	whole := openAfter
	openAfter = 300 * time.Millisecond
	defer func() { openAfter = whole }()
	env := Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "error"})}
	ctx := t.Context()
	if err := CreateDatastore(ctx, cfg, env, Create{Name: "trips", Shards: 4, Grant: true}); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := NewTailers(cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Role{w, tl} {
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
	c, err := client.New(client.Config{URLs: []string{"http://" + w.Addr()}, Budget: -1, AttemptTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	bodies := map[cellog.Key]string{}
	put := func(n int) { // together, for each may wait for a master that is gone
		t.Helper()
		var g errgroup.Group
		for range n {
			key, body := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, fmt.Sprintf(`{"n":%d}`, len(bodies))
			bodies[key] = body
			g.Go(func() error {
				_, err := c.Put(ctx, "trips", cellog.Put{Key: key, Body: []byte(body)})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatalf("put: %v", err)
		}
	}
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "test"), Cluster: "c0", Prefix: cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	record := func() position.Cluster {
		t.Helper()
		pos, err := pub.Positions(ctx)
		if err != nil || pos.Cluster == nil {
			t.Fatalf("%+v %v", pos, err)
		}
		return *pos.Cluster
	}
	other := map[string]string{"c0-n0": "c0-n1", "c0-n1": "c0-n0"}
	for i, step := range steps {
		put(40)
		before := record()
		died, undo := dieAt(step)
		err := promoteUntil(ctx, cfg, env, Promote{Cluster: "c0", Node: other[before.Node]})
		undo()
		// Only a shard that has copies is drained; then there may be none.
		if !died() && step != "promote/shard-drained" || died() && !errors.Is(err, errKilled) {
			t.Fatalf("%s: not killed there: %v", step, err)
		}
		put(5) // 201, or 202 meanwhile
		now := record()
		switch {
		case now.State == position.Open && now.Term > before.Term && i%2 == 0:
			// The keeper of whichever process finishes it.
			k := NewKeeper(cfg, env, 0)
			wt := watcher{k: k, cluster: &cfg.Clusters[0], record: now, since: time.Now().Add(-time.Minute)}
			if wt.pub, err = publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "test"), Cluster: "c0", Prefix: cfg.Kafka.Prefix, Logger: env.log()}); err != nil {
				t.Fatal(err)
			}
			wt.dbs = map[string]*sql.DB{}
			if err := wt.serve(ctx); err != nil {
				t.Errorf("%s: the keeper: %v", step, err)
			}
			wt.close()
		default:
			out, err := PromoteCluster(ctx, cfg, env, Promote{Cluster: "c0"})
			if err != nil {
				t.Fatalf("%s: the next promoter: %v", step, err)
			}
			if out.Lost > 0 {
				t.Errorf("%s: %+v", step, out)
			}
		}
		waitFor(t, 30*time.Second, func() error {
			for s := range 4 {
				r, err := w.store.Route("trips", cellog.ShardID(s))
				if err != nil {
					return err
				}
				if now := record(); s%2 == 0 && (r.Node != now.Node || now.State != position.Open) {
					return fmt.Errorf("%v, Kafka says %s in term %d", r, now.Node, now.Term)
				}
			}
			return nil
		})
		// A node that got something of its own comes back by a rejoin.
		if out, err := RejoinNode(ctx, cfg, env, Rejoin{Cluster: "c0", Node: other[record().Node], Errant: ErrantPut}); err != nil {
			t.Fatalf("%s: rejoin: %v", step, err)
		} else if out.Rebuilt {
			t.Logf("%s: %s was rebuilt, %d errant cells", step, out.Node, len(out.Errant))
		}
		put(5)
		for key, body := range bodies {
			waitFor(t, 20*time.Second, func() error {
				cell, err := c.Get(ctx, "trips", key, client.ReadOptions{})
				if err == nil && string(cell.Body) != body {
					t.Fatalf("%s: cell %s is %s, want %s", step, key, cell.Body, body)
				}
				return err
			})
		}
	}
	waitFor(t, time.Minute, func() error {
		rep, err := Verify(ctx, cfg, env, "trips", verify.Config{Wait: time.Second})
		if err != nil {
			return err
		}
		if !rep.Clean() || int(rep.Records) != len(bodies) {
			return fmt.Errorf("%+v, want %d", rep, len(bodies))
		}
		return nil
	})
	t.Logf("term %d, %d cells", record().Term, len(bodies))
}
