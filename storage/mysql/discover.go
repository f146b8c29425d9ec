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
	"github.com/cellog/cellog/storage"
)

// shardsPerLook bounds the shards that one statement asks for.
const shardsPerLook = 512

// look is what one server said.
type look struct {
	node       *node
	readOnly   bool
	self       string // SQL
	datastores []storage.Datastore
	shards     []ShardHead
}

// discover asks every server which datastores and shards it holds and renews
// the routes. The error is set when no server answered.
func (s *Store) discover(ctx context.Context) error {
	var nodes []*node
	for _, c := range s.clusters {
		nodes = append(nodes, c.nodes...)
	}
	looks := make([]*look, len(nodes))
	errs := make([]error, len(nodes))
	var g errgroup.Group
	for i, n := range nodes {
		g.Go(func() error {
			lctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			looks[i], errs[i] = lookAt(lctx, n)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	answered := 0
	for i, l := range looks {
		n := nodes[i]
		n.mu.Lock()
		n.seen = l != nil
		n.writable = l != nil && !l.readOnly
		if l != nil {
			n.self = l.self
		}
		n.mu.Unlock()
		if l == nil {
			s.metrics.nodeUp.WithLabelValues(n.cluster, n.Name).Set(0)
			continue
		}
		answered++
		s.metrics.nodeUp.WithLabelValues(n.cluster, n.Name).Set(1)
		for _, d := range l.datastores {
			s.routes.SetDatastore(d)
		}
	}
	if answered == 0 {
		return fmt.Errorf("storage/mysql: no server answered: %w", errors.Join(errs...))
	}
	highest := map[string]cellog.Epoch{}
	for _, l := range looks {
		if l == nil {
			continue
		}
		for _, sh := range l.shards {
			// A copy, or what a move has left, is of no use to anybody.
			if name := cellog.DatabaseName(sh.Datastore, sh.Shard); !sh.Foreign() && sh.Epoch >= highest[name] {
				highest[name] = sh.Epoch
				s.placed.Store(name, l.node.cluster)
			}
			if !l.readOnly {
				s.propose(l.node, sh)
			}
		}
	}
	return nil
}

// propose enters a shard's place into the routes if it is open there.
func (s *Store) propose(n *node, sh ShardHead) {
	if sh.Open() {
		s.routes.Set(storage.Route{Datastore: sh.Datastore, Shard: sh.Shard, Cluster: n.cluster, Node: n.Name, Epoch: sh.Epoch})
	}
}

func lookAt(ctx context.Context, n *node) (*look, error) {
	l := &look{node: n}
	var version string
	if err := n.read.QueryRowContext(ctx, "SELECT @@global.read_only, VERSION()").Scan(&l.readOnly, &version); err != nil {
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

// lookFor asks all servers for one shard and renews its route.
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
				sh := ShardHead{Datastore: datastore, Shard: shard}
				var readOnly bool
				err := n.read.QueryRowContext(lctx, "SELECT @@global.read_only, epoch, state FROM "+quote(datastore, shard)+".shard_log WHERE id = 1").
					Scan(&readOnly, &sh.Epoch, &sh.State)
				if err == nil && !readOnly {
					s.propose(n, sh)
				}
				return nil // a server without the shard, or out of reach, has no say
			})
		}
	}
	_ = g.Wait() // no function returns an error
}
