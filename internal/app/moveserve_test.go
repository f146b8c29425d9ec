package app

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// inShard returns a key whose row is in a shard of four.
func inShard(s cellog.ShardID) cellog.Key {
	for {
		if k := (cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}); cellog.ShardOf(k.Row, 4) == s {
			return k
		}
	}
}

// reader is a worker that nobody writes through: it learns of a move by itself
// alone.
func (m *moving) reader(t *testing.T) (c *client.Client, url string) {
	t.Helper()
	w, err := NewWorker(m.cfg, m.env)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	url = "http://" + w.Addr()
	c, err = client.New(client.Config{URLs: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := w.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return c, url
}

// While a shard moves there and back, every put is answered 201 or 202; what was
// answered 201 is read by another worker too, or the read says that it is stale;
// a reader of the log misses nothing and sees nothing twice; and what is left on
// the old cluster is written to no more.
func TestMoveWhileItServes(t *testing.T) {
	m := newMoving(t, false)
	moveNotice = storage.LookFor + time.Second
	reader, url := m.reader(t)
	run, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex // guards what follows
	var created []time.Time
	var slowest time.Duration
	buffered, stale := 0, 0
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for run.Err() == nil {
				key, began := inShard(0), time.Now()
				body := fmt.Sprintf(`{"driver":%q,"n":1}`, uuid.New())
				res, err := m.client.Put(t.Context(), "trips", cellog.Put{Key: key, Body: []byte(body)})
				if err != nil {
					t.Errorf("put: %v", err)
					return
				}
				mu.Lock()
				m.bodies[key] = body
				slowest = max(slowest, time.Since(began))
				if res.Buffered {
					buffered++
				} else {
					created = append(created, time.Now())
				}
				mu.Unlock()
				if res.Buffered {
					continue
				}
				status, isStale := 0, false
				if resp, err := http.Get(fmt.Sprintf("%s/v1/trips/cells/%s/%s/%d", url, key.Row, key.Column, key.Ref)); err == nil {
					status, isStale = resp.StatusCode, resp.Header.Get("Cellog-Stale") == "true"
					_ = resp.Body.Close()
				}
				switch {
				case isStale:
					mu.Lock()
					stale++
					mu.Unlock()
				case status != http.StatusOK:
					t.Errorf("a cell that was answered 201 in epoch %d: a read is answered %d, and not stale", res.Epoch, status)
				}
			}
		})
	}
	wg.Go(func() { // the log
		var at cellog.AddedID
		var epoch cellog.Epoch
		for run.Err() == nil {
			page, err := reader.Log(run, "trips", client.LogQuery{Shard: 0, After: at})
			if err != nil {
				if run.Err() == nil {
					t.Errorf("log after %d: %v", at, err)
				}
				continue
			}
			for _, c := range page.Cells {
				if c.AddedID != at+1 || c.Epoch < epoch {
					t.Errorf("the log has cell %d of epoch %d after cell %d of epoch %d", c.AddedID, c.Epoch, at, epoch)
				}
				at, epoch = c.AddedID, c.Epoch
			}
		}
	})
	grow := func() {
		mu.Lock()
		from := len(created)
		mu.Unlock()
		waitFor(t, time.Minute, func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(created) < from+50 {
				return fmt.Errorf("%d cells answered 201, before %d", len(created), from)
			}
			return nil
		})
	}
	// left is what a cluster's master has of the shard.
	left := func(cluster string) (h mysql.ShardHead) {
		t.Helper()
		db, err := openAdmin(m.cfg.Cluster(cluster), cluster+"-n0")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if h, _, err = mysql.Head(t.Context(), db, "trips", 0); err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, to := range []string{"c1", "c0", "c1"} {
		grow()
		out, err := MoveShard(t.Context(), m.cfg, m.env, Move{Datastore: "trips", Shard: 0, To: to})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", out)
		old := left(out.From)
		grow()
		if now := left(out.From); now != old || now.Last != out.Cells || now.MovingTo() != to {
			t.Errorf("the old copy on %s was %+v, and is %+v", out.From, old, now)
		}
	}
	stop()
	wg.Wait()
	slices.SortFunc(created, time.Time.Compare)
	gap := time.Duration(0)
	for i := 1; i < len(created); i++ {
		gap = max(gap, created[i].Sub(created[i-1]))
	}
	t.Logf("%d cells answered 201, %d 202; longest without a 201 %v, slowest put %v; %d reads were stale", len(created), buffered, gap, slowest, stale)
	m.check(t)
	if rep, err := Verify(t.Context(), m.cfg, m.env, "trips", verify.Config{}); err != nil || !rep.Clean() {
		t.Errorf("%+v %v", rep, err)
	}
}

// A minion that missed that a shard had moved away does not serve it when it
// becomes the master.
func TestPromotedMinionLeavesMovedShards(t *testing.T) {
	m := newMoving(t, false)
	ctx := t.Context()
	if _, err := MoveShard(ctx, m.cfg, m.env, Move{Datastore: "trips", Shard: 0, To: "c1"}); err != nil {
		t.Fatal(err)
	}
	db, err := openAdmin(m.cfg.Cluster("c0"), "c0-n1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	waitFor(t, 10*time.Second, func() error {
		h, _, err := mysql.Head(ctx, db, "trips", 0)
		if err == nil && h.MovingTo() == "" {
			err = fmt.Errorf("%+v", h)
		}
		return err
	})
	if err := allowAdmin(ctx, db); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, q := range []string{"SET SESSION sql_log_bin = 0", "UPDATE trips_0000.shard_log SET state = 'open' WHERE id = 1", "SET SESSION sql_log_bin = 1"} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := PromoteCluster(ctx, m.cfg, m.env, Promote{Cluster: "c0", Node: "c0-n1"}); err != nil {
		t.Fatal(err)
	}
	if h, _, err := mysql.Head(ctx, db, "trips", 0); err != nil || h.MovingTo() != "c1" {
		t.Errorf("%+v %v", h, err)
	}
	m.check(t)
}

// A move to a cluster whose minions do not follow would leave the shard on one
// machine: it is refused while the shard serves.
func TestMoveWantsAMinion(t *testing.T) {
	m := newMoving(t, false)
	ctx := t.Context()
	cfg := *m.cfg // as if it did not answer
	cfg.Clusters = slices.Clone(cfg.Clusters)
	cfg.Clusters[1].Nodes = slices.Clone(cfg.Clusters[1].Nodes)
	cfg.Clusters[1].Nodes[1].Addr = "127.0.0.1:1"
	_, err := MoveShard(ctx, &cfg, m.env, Move{Datastore: "trips", Shard: 0, To: "c1"})
	if err == nil {
		t.Fatal("it moved")
	}
	t.Log(err)
	from, err := openAdmin(m.cfg.Cluster("c0"), "c0-n0")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if h, _, err := mysql.Head(ctx, from, "trips", 0); err != nil || !h.Open() {
		t.Errorf("%+v %v", h, err)
	}
}
