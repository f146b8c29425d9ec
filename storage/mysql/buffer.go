package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// copyPoll is how often a minion is asked whether it has a copy.
const copyPoll = 2 * time.Millisecond

// Buffer keeps unnumbered copies of cells whose primary gives no answer, on two
// machines of other clusters than the shard's: two masters, or one and a minion
// that has applied them. The Body of each put is in stored form. When it returns
// nil every cell is durable, and a Drainer puts it in once the primary, or its
// successor, is back. An error is storage.ErrUnavailable when nothing was sent,
// storage.ErrOutcomeUnknown when some of it may be there.
func (s *Store) Buffer(ctx context.Context, datastore string, shard cellog.ShardID, puts []cellog.Put) error {
	owner, err := s.owner(datastore, shard)
	if err != nil {
		return err
	}
	var errs []error
	var first *node
	var id int64
	sent := false
	holders, why := s.holders(owner)
	if len(holders) == 1 && len(s.byName[holders[0].cluster].nodes) == 1 {
		why = append(why, fmt.Sprintf("%s/%s is one machine alone", holders[0].cluster, holders[0].Name))
		holders = nil
	}
	for _, n := range holders {
		if !n.breaker.Allow() {
			why = append(why, fmt.Sprintf("%s/%s has failed just now", n.cluster, n.Name))
			continue
		}
		sent = true
		got, err := insertCopies(ctx, n.write, owner, datastore, shard, puts)
		if unreachable(ctx, err) {
			n.breaker.Failure()
		} else {
			n.breaker.Success()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
			continue
		}
		if first != nil {
			return nil // two masters
		}
		first, id = n, got
	}
	if first != nil {
		if err = s.minionHas(ctx, first, id, &puts[0]); err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	if sent {
		return fmt.Errorf("%w (copies: %w)", storage.ErrOutcomeUnknown, errors.Join(errs...))
	}
	err = fmt.Errorf("%w (no other cluster's master can hold copies: %s)", storage.ErrUnavailable, strings.Join(why, ", "))
	s.warn(&s.toldNoHolder, "cells are refused: their primary does not answer", "cluster", owner, "error", err)
	return err
}

// owner returns the cluster that has a shard, as it was last seen, on whichever
// of its nodes.
func (s *Store) owner(datastore string, shard cellog.ShardID) (string, error) {
	if r, err := s.routes.Route(datastore, shard); err == nil {
		return r.Cluster, nil
	}
	if c, ok := s.placedOn(datastore, shard); ok {
		return c, nil
	}
	return "", fmt.Errorf("datastore %q, shard %d: %w (no server was seen to have it)", datastore, shard, storage.ErrUnavailable)
}

// holders returns the writable masters of other clusters, in any order, and what
// the clusters lack that have none.
func (s *Store) holders(owner string) (out []*node, why []string) {
	for _, c := range s.clusters {
		if c.name == owner {
			continue
		}
		had := len(out)
		for _, n := range c.nodes {
			if n.isWritable() {
				out = append(out, n)
			}
		}
		if len(out) == had {
			why = append(why, c.name+" took no writes when it was looked at last")
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out, why
}

// execer is a pool or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// insertCopies stores copies and returns the id of the first one.
func insertCopies(ctx context.Context, on execer, owner, datastore string, shard cellog.ShardID, puts []cellog.Put) (int64, error) {
	var sb strings.Builder
	sb.WriteString("INSERT INTO cellog_buffer.buffered_cells (cluster, datastore, shard, row_key, column_name, ref_key, body, traceparent, buffered_at) VALUES ")
	args := make([]any, 0, 7*len(puts))
	for i := range puts {
		p := &puts[i]
		if i > 0 {
			sb.WriteByte(',')
		}
		sb.WriteString("(?, ?, " + strconv.Itoa(int(shard)) + ", ?, ?, " + strconv.FormatInt(int64(p.Ref), 10) + ", ?, ?, NOW(6))")
		args = append(args, owner, datastore, p.Row[:], p.Column, p.Body, sql.NullString{String: p.TraceParent, Valid: p.TraceParent != ""})
	}
	res, err := on.ExecContext(ctx, sb.String(), args...)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// minionHas waits until a minion has a transaction that a master committed:
// the one which gave an id to a copy of p.
func (s *Store) minionHas(ctx context.Context, master *node, id int64, p *cellog.Put) error {
	t := time.NewTicker(copyPoll)
	defer t.Stop()
	minions := slices.DeleteFunc(slices.Clone(s.byName[master.cluster].nodes), func(n *node) bool { return n == master })
	if len(minions) == 0 {
		return fmt.Errorf("cluster %q has no minion that could hold the second copy", master.cluster)
	}
	for {
		for _, n := range minions {
			var one int
			err := n.read.QueryRowContext(ctx, "SELECT 1 FROM cellog_buffer.buffered_cells WHERE id = ? AND row_key = ? AND column_name = ? AND ref_key = ?",
				id, p.Row[:], p.Column, int64(p.Ref)).Scan(&one)
			if err == nil {
				return nil
			}
			if mysqlconn.IsLost(err) && len(minions) == 1 && ctx.Err() == nil {
				return fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err)
			}
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("no minion of cluster %q has the copies yet: %w", master.cluster, ctx.Err())
		}
	}
}
