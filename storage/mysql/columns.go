package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/cellog/cellog/storage"
)

// columnCache holds the columns that a cluster is known to have. Columns are
// never removed, so what is in it stays true.
type columnCache struct {
	mu    sync.RWMutex
	known map[string]map[string]bool // datastore, column
}

func (c *columnCache) has(datastore, column string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.known[datastore][column]
}

func (c *columnCache) add(datastore string, columns []string) {
	if len(columns) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[string]map[string]bool{}
	}
	if c.known[datastore] == nil {
		c.known[datastore] = map[string]bool{}
	}
	for _, col := range columns {
		c.known[datastore][col] = true
	}
}

// unknown returns the columns of the undecided groups that the cache lacks, in
// the order in which they come.
func (t *tx) unknown() []string {
	var out []string
	seen := map[string]bool{}
	last := ""
	for _, g := range t.batch.groups {
		col := g.key.Column
		if g.decided || col == last || seen[col] {
			continue
		}
		last, seen[col] = col, true
		if !t.columns.has(t.route.Datastore, col) {
			out = append(out, col)
		}
	}
	return out
}

// admitColumns makes sure that every column of the batch is counted. A column
// that nobody has used opens the transaction, locks the cluster's row, so that
// two workers never count at the same time, and either enters the column, to
// be committed with its first cell, or refuses its cells.
func (t *tx) admitColumns(ctx context.Context) error {
	if len(t.unknown()) == 0 {
		return nil
	}
	if err := t.loadColumns(ctx); err != nil {
		return err
	}
	missing := t.unknown()
	if len(missing) == 0 {
		return nil
	}
	t.begun = true
	rows, err := t.conn.QueryContext(ctx, begin+"SELECT column_limit FROM cellog_meta.cluster WHERE id = 1 FOR UPDATE")
	if err != nil {
		return fmt.Errorf("%w: lock cellog_meta.cluster: %w", errRedo, err)
	}
	limit := -1
	if err := each(rows, func() error { return rows.Scan(&limit) }); err != nil {
		return fmt.Errorf("%w: lock cellog_meta.cluster: %w", errRedo, err)
	}
	if limit < 0 {
		return fmt.Errorf("%w: cellog_meta.cluster of cluster %s has no row, run `cellog datastore create`", storage.ErrUnavailable, t.route.Cluster)
	}
	if err := t.loadColumns(ctx); err != nil {
		return err
	}
	missing = t.unknown()
	count := 0
	if err := t.conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM cellog_meta.columns").Scan(&count); err != nil {
		return fmt.Errorf("%w: count columns: %w", errRedo, err)
	}
	room := max(0, limit-count)
	t.added = missing[:min(room, len(missing))]
	if err := t.enterColumns(ctx); err != nil {
		return err
	}
	refused := map[string]bool{}
	for _, col := range missing[len(t.added):] {
		refused[col] = true
	}
	for _, g := range t.batch.open() {
		if refused[g.key.Column] {
			t.batch.refuse(g, fmt.Errorf("column %s: cluster %s has %d of %d columns: %w", g.key.Column, t.route.Cluster, count+len(t.added), limit, storage.ErrColumnLimit))
		}
	}
	return nil
}

func (t *tx) enterColumns(ctx context.Context) error {
	if len(t.added) == 0 {
		return nil
	}
	args := make([]any, 0, 2*len(t.added))
	for _, col := range t.added {
		args = append(args, t.route.Datastore, col)
	}
	values := strings.TrimSuffix(strings.Repeat("(?, ?, UTC_TIMESTAMP(6)), ", len(t.added)), ", ")
	if _, err := t.conn.ExecContext(ctx, "INSERT INTO cellog_meta.columns (datastore, column_name, created_at) VALUES "+values, args...); err != nil {
		return fmt.Errorf("%w: enter columns: %w", errRedo, err)
	}
	return nil
}

// loadColumns fills the cache with the datastore's columns that are committed.
func (t *tx) loadColumns(ctx context.Context) error {
	q := "SELECT column_name FROM cellog_meta.columns WHERE datastore = ?"
	rows, err := t.conn.QueryContext(ctx, q, t.route.Datastore)
	if err != nil {
		return fmt.Errorf("%w: read columns: %w", errRedo, err)
	}
	var cols []string
	err = each(rows, func() error {
		var c string
		if err := rows.Scan(&c); err != nil {
			return err
		}
		cols = append(cols, c)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: read columns: %w", errRedo, err)
	}
	t.columns.add(t.route.Datastore, cols)
	return nil
}
