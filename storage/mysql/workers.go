package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/storage"
)

// forgetWorkers is how long, by the server's clock, a worker that died without
// a word stays in cellog_meta.workers. Others see much sooner that it is gone.
const forgetWorkers = "1 HOUR"

// Announce tells every writable server that a worker is alive at a URL. Call it
// again and again. The error is set when no server took it.
func (s *Store) Announce(ctx context.Context, name, url string) error {
	return s.onWritable(ctx, func(ctx context.Context, n *node) error {
		if _, err := n.read.ExecContext(ctx, "INSERT INTO cellog_meta.workers (name, url, updated_at) VALUES (?, ?, NOW(6)) "+
			"ON DUPLICATE KEY UPDATE url = VALUES(url), updated_at = VALUES(updated_at)", name, url); err != nil {
			return err
		}
		_, err := n.read.ExecContext(ctx, "DELETE FROM cellog_meta.workers WHERE updated_at < NOW(6) - INTERVAL "+forgetWorkers)
		return err
	})
}

// Withdraw takes back what Announce told.
func (s *Store) Withdraw(ctx context.Context, name string) error {
	return s.onWritable(ctx, func(ctx context.Context, n *node) error {
		_, err := n.read.ExecContext(ctx, "DELETE FROM cellog_meta.workers WHERE name = ?", name)
		return err
	})
}

// Workers returns what the writable servers know of workers, dead ones
// included. The error is set when no server answered.
func (s *Store) Workers(ctx context.Context) ([]storage.Sighting, error) {
	var mu sync.Mutex
	var out []storage.Sighting
	err := s.onWritable(ctx, func(ctx context.Context, n *node) error {
		rows, err := n.read.QueryContext(ctx, "SELECT name, url, updated_at FROM cellog_meta.workers LIMIT 10000")
		if err != nil {
			return err
		}
		return each(rows, func() error {
			w := storage.Sighting{Node: n.cluster + "/" + n.Name}
			if err := rows.Scan(&w.Name, &w.URL, &w.Beat); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, w)
			return nil
		})
	})
	return out, err
}

// onWritable calls fn for each server that was writable at the last look, all
// at the same time. The error is set when none succeeded.
func (s *Store) onWritable(ctx context.Context, fn func(context.Context, *node) error) error {
	var nodes []*node
	for _, c := range s.clusters {
		for _, n := range c.nodes {
			if n.isWritable() {
				nodes = append(nodes, n)
			}
		}
	}
	errs := make([]error, len(nodes))
	var g errgroup.Group
	for i, n := range nodes {
		g.Go(func() error {
			if err := fn(ctx, n); err != nil {
				errs[i] = fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err)
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("%w (%w)", storage.ErrUnavailable, errors.Join(errs...))
}
