package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

const (
	orderClients = 64
	orderPuts    = 25 // of each client
)

// poll follows a shard's entity table as a naive reader does, by added_id >
// last, until done is closed and nothing new comes. It returns how many rows it
// saw.
func poll(db *sql.DB, table string, done <-chan struct{}) (int, error) {
	last, seen := int64(0), 0
	for {
		final := false
		select {
		case <-done:
			final = true // what is committed now is the last look's
		default:
		}
		rows, err := db.Query("SELECT added_id FROM "+table+" WHERE added_id > ? ORDER BY added_id", last)
		if err != nil {
			return seen, err
		}
		err = each(rows, func() error {
			seen++
			return rows.Scan(&last)
		})
		if err != nil || final {
			return seen, err
		}
	}
}

// checkOrder lets 64 clients put into so many shards at the same time, each its
// own transaction, and follows the shards on the master and on a minion. It
// returns what is wrong.
func checkOrder(t *testing.T, shards int, broken bool) error {
	c := mysqltest.Cluster(t, 1)
	writers := 8 // as so many workers; more only wait for the lock
	if broken {
		writers = orderClients
	}
	st := newOpenStore(t, shards, func(c *Config) { c.Writers = writers }, c.Master, c.Minions[0])
	st.unlocked = broken
	c.Sync(t)
	master, minion := c.Master.DB(t, ""), c.Minions[0].DB(t, "")
	written, applied := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var wrong []error
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if len(wrong) < 20 {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	var pollers, clients sync.WaitGroup
	masterSaw, minionSaw := make([]int, shards), make([]int, shards)
	for s := range shards {
		table := quote(st.ds, cellog.ShardID(s)) + ".entity"
		follow := func(db *sql.DB, name string, saw *int, done chan struct{}) {
			pollers.Go(func() {
				var err error
				if *saw, err = poll(db, table, done); err != nil {
					note("poller of %s on the %s: %w", table, name, err)
				}
			})
		}
		follow(master, "master", &masterSaw[s], written)
		follow(minion, "minion", &minionSaw[s], applied)
	}
	for client := range orderClients {
		clients.Go(func() {
			for i := range orderPuts {
				row := uuid.New()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				_, errs := st.Write(ctx, st.ds, cellog.ShardOf(row, shards), []cellog.Put{{Key: cellog.Key{Row: row, Column: "BASE", Ref: 1}, Body: mustBody(t, fmt.Sprint(client*1000+i))}})
				cancel()
				if errs[0] != nil {
					note("put: %w", errs[0])
				}
			}
		})
	}
	clients.Wait()
	close(written)
	c.Sync(t)
	close(applied)
	pollers.Wait()
	total := 0
	for s := range shards {
		var n, hi int
		q := "SELECT COUNT(*), COALESCE(MAX(added_id), 0) FROM " + quote(st.ds, cellog.ShardID(s)) + ".entity"
		if err := master.QueryRow(q).Scan(&n, &hi); err != nil {
			t.Fatal(err)
		}
		if n != hi {
			note("shard %d: %d rows up to added_id %d", s, n, hi)
		}
		if masterSaw[s] != n || minionSaw[s] != n {
			note("shard %d: %d rows, the poller of the master saw %d, that of the minion %d", s, n, masterSaw[s], minionSaw[s])
		}
		total += n
	}
	if total != orderClients*orderPuts {
		note("%d rows for %d puts", total, orderClients*orderPuts)
	}
	return errors.Join(wrong...)
}

func TestOrder(t *testing.T) {
	for _, shards := range []int{1, 16} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			if err := checkOrder(t, shards, false); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without the shard's lock the same check must fail, or it checks nothing.
func TestOrderCheckSeesAMissingLock(t *testing.T) {
	err := checkOrder(t, 1, true)
	if err == nil {
		t.Error("rows without a lock were in order")
	}
	t.Log(err)
}

func TestReadsFromMinions(t *testing.T) {
	c := mysqltest.Cluster(t, 1)
	st := newOpenStore(t, 1, nil, c.Master, c.Minions[0])
	k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}
	if _, errs := st.Write(t.Context(), st.ds, 0, []cellog.Put{{Key: k, Body: mustBody(t, `1`)}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	c.Sync(t)
	cell, o, err := st.Version(t.Context(), st.ds, k, cellog.Minion)
	if err != nil || cell.AddedID != 1 || o != (cellog.Origin{From: cellog.Minion, Node: "c0/n1", Lag: cellog.UnknownLag}) {
		t.Errorf("read from a minion: %+v %+v %v", cell, o, err)
	}
	if _, o, err = st.Version(t.Context(), st.ds, k, cellog.Master); err != nil || o != (cellog.Origin{From: cellog.Master, Node: "c0/n0"}) {
		t.Errorf("read from the master: %+v %v", o, err)
	}
	// Three heartbeats have reached the minion, the newest 7 s old.
	for i := range 3 {
		c.Master.Exec(t, fmt.Sprintf("REPLACE INTO cellog_meta.heartbeats (cluster, beat, written_at) VALUES ('c0', %d, UTC_TIMESTAMP(6) - INTERVAL %d SECOND)", i, 9-i))
	}
	c.Sync(t)
	minion := st.clusters[0].nodes[1]
	minion.mu.Lock()
	minion.beat = beat{} // not from memory
	minion.mu.Unlock()
	if _, o, err = st.Version(t.Context(), st.ds, k, cellog.Minion); err != nil || o.Lag < 7*time.Second || o.Lag > time.Minute {
		t.Errorf("read from a minion that is behind: %+v %v", o, err)
	}
	c.Master.Kill()
	<-c.Master.Done()
	if cell, o, err = st.Version(t.Context(), st.ds, k, cellog.Master); err != nil || o.Lag < 7*time.Second || o != (cellog.Origin{From: cellog.Minion, Node: "c0/n1", Stale: true, Lag: o.Lag}) {
		t.Errorf("read from a dead master: %+v %+v %v", cell, o, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	other := k
	other.Ref = 2
	if _, errs := st.Write(ctx, st.ds, 0, []cellog.Put{{Key: other, Body: mustBody(t, `1`)}}); !errors.Is(errs[0], storage.ErrUnavailable) {
		t.Errorf("write to a dead master: %v", errs[0])
	}
}
