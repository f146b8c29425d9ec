package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// shardsPerLook bounds the shards that one statement asks for.
const shardsPerLook = 512

// look is what one server said.
type look struct {
	readOnly   bool   // or was never opened as its cluster's master
	self       string // SQL
	datastores []storage.Datastore
	shards     []ShardHead
}

// lookTimeout bounds one look at a server.
const lookTimeout = 10 * time.Second

// discover looks at every server, and waits for all. The error is set when no
// server answered.
func (s *Store) discover(ctx context.Context) error {
	var mu sync.Mutex
	var errs []error
	nodes := 0
	var wg sync.WaitGroup
	for _, c := range s.clusters {
		for _, n := range c.nodes {
			nodes++
			wg.Go(func() {
				if err := s.look(ctx, n); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			})
		}
	}
	wg.Wait()
	if len(errs) == nodes {
		return fmt.Errorf("storage/mysql: no server answered: %w", errors.Join(errs...))
	}
	return nil
}

// look asks one server which datastores and shards it holds, and renews their
// routes.
func (s *Store) look(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	defer func() { s.metrics.observeNodes(s.byName[n.cluster], &s.cfg) }()
	l, err := lookAt(ctx, n)
	n.mu.Lock()
	n.seen = err == nil
	n.writable = err == nil && !l.readOnly
	if err == nil {
		n.self, n.guard = l.self, guard(n.cluster, l.self)
	}
	n.mu.Unlock()
	if err != nil {
		s.metrics.nodeUp.WithLabelValues(n.cluster, n.Name).Set(0)
		return err
	}
	s.metrics.nodeUp.WithLabelValues(n.cluster, n.Name).Set(1)
	for _, d := range l.datastores {
		s.routes.SetDatastore(d)
	}
	for _, sh := range l.shards {
		s.note(n, sh)
		if !l.readOnly {
			s.propose(n, sh)
		}
	}
	return nil
}

// place is where a shard was seen, of the highest epoch.
type place struct {
	cluster string
	epoch   cellog.Epoch
}

// note remembers which cluster has a shard. A copy, or what a move has left, is
// of no use to anybody, and servers are looked at in any order.
func (s *Store) note(n *node, sh ShardHead) {
	if sh.Foreign() {
		return
	}
	name, now := cellog.DatabaseName(sh.Datastore, sh.Shard), place{n.cluster, sh.Epoch}
	for {
		old, loaded := s.placed.LoadOrStore(name, now)
		if !loaded || old.(place).epoch >= now.epoch || s.placed.CompareAndSwap(name, old, now) {
			return
		}
	}
}

// placedOn returns the cluster that was seen to have a shard.
func (s *Store) placedOn(datastore string, shard cellog.ShardID) (cluster string, ok bool) {
	p, ok := s.placed.Load(cellog.DatabaseName(datastore, shard))
	if !ok {
		return "", false
	}
	return p.(place).cluster, true
}

// propose enters a shard's place into the routes if it is open there.
func (s *Store) propose(n *node, sh ShardHead) {
	if sh.Open() {
		s.routes.Set(storage.Route{Datastore: sh.Datastore, Shard: sh.Shard, Cluster: n.cluster, Node: n.Name, Epoch: sh.Epoch})
	}
}

// never is a guard that nothing passes.
const never = " AND FALSE"

// guard is the SQL condition under which a server, which calls itself self, may
// take writes: if it was told who its cluster's master is (LoadTerms), it must be
// that one. A minion that somebody made writable has its old master's row.
func guard(cluster, self string) string {
	return " AND NOT EXISTS (SELECT 1 FROM cellog_meta.terms WHERE cluster = " + string(appendText(nil, cluster)) + " AND server_uuid NOT IN ('', " + self + "))"
}

// mayWrite is the node's guard.
func (n *node) mayWrite() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.self == "" {
		return never
	}
	return n.guard
}

func lookAt(ctx context.Context, n *node) (*look, error) {
	l := &look{}
	var version string
	if err := n.read.QueryRowContext(ctx, "SELECT "+mysqlconn.ReadOnly+", VERSION()").Scan(&l.readOnly, &version); err != nil {
		return nil, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err)
	}
	l.self = selfName(version)
	var err error
	if l.datastores, err = datastoresOf(ctx, n.read); err != nil {
		return nil, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err)
	}
	known := map[string]int{}
	for _, d := range l.datastores {
		known[d.Name] = d.Shards
	}
	if !l.readOnly {
		// One that only an external manager made writable is not the master yet.
		if err := n.read.QueryRowContext(ctx, "SELECT NOT (TRUE"+guard(n.cluster, l.self)+")").Scan(&l.readOnly); err != nil {
			return nil, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err)
		}
	}
	heads, err := Heads(ctx, n.read)
	if err != nil {
		return nil, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err)
	}
	for _, h := range heads {
		if int(h.Shard) < known[h.Datastore] {
			l.shards = append(l.shards, h)
		}
	}
	return l, nil
}

func datastoresOf(ctx context.Context, db *sql.DB) ([]storage.Datastore, error) {
	rows, err := db.QueryContext(ctx, "SELECT name, shards, partitions FROM cellog_meta.datastores")
	if err != nil {
		return nil, err
	}
	var out []storage.Datastore
	err = each(rows, func() error {
		var d storage.Datastore
		if err := rows.Scan(&d.Name, &d.Shards, &d.Partitions); err != nil {
			return err
		}
		out = append(out, d)
		return nil
	})
	return out, err
}

// each calls f for every row and closes rows.
func each(rows *sql.Rows, f func() error) error {
	defer rows.Close()
	for rows.Next() {
		if err := f(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// refresher makes many callers that met a stale route share one look.
type refresher struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// minBetweenLooks is the shortest time between two looks for one shard.
const minBetweenLooks = 50 * time.Millisecond

// saw takes note that the node answered, and whether it takes writes.
func (n *node) saw(writable bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen, n.writable = true, writable
}

// lookFor asks all servers for one shard and renews its route; and whether they
// take writes, for copies of what its primary cannot keep.
func (s *Store) lookFor(ctx context.Context, datastore string, shard cellog.ShardID) {
	key := cellog.DatabaseName(datastore, shard)
	s.refresh.mu.Lock()
	if s.refresh.last == nil {
		s.refresh.last = map[string]time.Time{}
	}
	if time.Since(s.refresh.last[key]) < minBetweenLooks {
		s.refresh.mu.Unlock()
		return
	}
	s.refresh.last[key] = time.Now()
	s.refresh.mu.Unlock()
	s.metrics.staleRoutes.Inc()
	var g errgroup.Group
	for _, c := range s.clusters {
		for _, n := range c.nodes {
			g.Go(func() error {
				lctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				guard := n.mayWrite()
				if guard == never { // it was not looked at yet
					_ = s.look(lctx, n) // out of reach, it has no say
					return nil
				}
				var readOnly bool
				if err := n.read.QueryRowContext(lctx, "SELECT "+mysqlconn.ReadOnly+" OR NOT (TRUE"+guard+")").Scan(&readOnly); err != nil {
					return nil
				}
				n.saw(!readOnly)
				if readOnly {
					return nil
				}
				sh := ShardHead{Datastore: datastore, Shard: shard}
				if err := n.read.QueryRowContext(lctx, "SELECT epoch, state FROM "+quote(datastore, shard)+".shard_log WHERE id = 1").Scan(&sh.Epoch, &sh.State); err == nil {
					s.propose(n, sh)
				}
				return nil // a server without the shard, or out of reach, has no say
			})
		}
	}
	_ = g.Wait() // no function returns an error
}
