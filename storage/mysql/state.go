package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

// askTimeout bounds a question to one server where another one can answer too,
// or a part of the answer is enough.
const askTimeout = 1500 * time.Millisecond

// State says what is known of a key: it asks the shard, and every cluster's
// buffer for copies and rejections. The error is set when the shard could not
// be asked and no copy was found, and when nothing was found but a cluster's
// buffer could not be asked: nobody knows then.
func (s *Store) State(ctx context.Context, datastore string, key cellog.Key) (cellog.CellState, error) {
	var g errgroup.Group
	var cell cellog.Cell
	var shardErr error
	g.Go(func() error {
		cell, shardErr = s.inShard(ctx, datastore, key)
		return nil
	})
	buffers := make([]bufferSays, len(s.clusters))
	for i, c := range s.clusters {
		g.Go(func() error {
			buffers[i] = c.buffer(ctx, datastore, key)
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	st := cellog.CellState{State: cellog.StateUnknown}
	buffered := false
	var errs []error
	if shardErr != nil {
		// While its shard is away a cell may be in a numbered copy only. These are
		// not kept by key, and may be many, so they are looked through only then.
		found, err := s.inNumberedCopies(ctx, datastore, key)
		buffered, errs = found, append(errs, err)
	}
	for _, b := range buffers {
		buffered = buffered || b.buffered
		st.Rejected = append(st.Rejected, b.rejected...)
		errs = append(errs, b.err)
	}
	unasked := errors.Join(errs...)
	switch {
	case shardErr == nil:
		cell.Body = nil
		st.State, st.Cell = cellog.StateStored, &cell
	case buffered:
		st.State = cellog.StateBuffered
	case !errors.Is(shardErr, storage.ErrNotFound):
		return cellog.CellState{}, shardErr
	case len(st.Rejected) > 0:
		st.State = cellog.StateRejected
	case unasked != nil:
		return cellog.CellState{}, fmt.Errorf("%w (%w)", storage.ErrUnavailable, unasked)
	}
	return st, nil
}

// inShard returns a cell as one that may be called final: of no dead branch.
func (s *Store) inShard(ctx context.Context, datastore string, key cellog.Key) (cellog.Cell, error) {
	n, err := s.Shards(datastore)
	if err != nil {
		return cellog.Cell{}, err
	}
	shard := cellog.ShardOf(key.Row, n)
	var found []cellog.Cell
	_, err = s.readingFinal(ctx, datastore, shard, 0, cellog.Master, func(ctx context.Context, db querier, name string) (err error) {
		found, _, err = cells(ctx, db, datastore, shard, 1, "SELECT "+cellFields+" FROM "+name+".entity WHERE row_key = ? AND column_name = ? AND ref_key = ? LIMIT 2",
			key.Row[:], key.Column, int64(key.Ref))
		return err
	})
	if err == nil && len(found) == 0 {
		err = storage.ErrNotFound
	}
	if err != nil {
		return cellog.Cell{}, err
	}
	return found[0], nil
}

// bufferSays is what a cluster's servers know of a key besides its shard.
type bufferSays struct {
	buffered bool
	rejected []cellog.Rejection
	err      error // none of them answered
}

// buffer asks all of a cluster's servers for copies, and one of them, the
// master if it answers, for rejections.
func (c *cluster) buffer(ctx context.Context, datastore string, key cellog.Key) (out bufferSays) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex // guards out and what follows
	var answered, fromMaster bool
	var errs []error
	var g errgroup.Group
	for _, n := range c.nodes {
		g.Go(func() error {
			buffered, err := bufferedOn(ctx, n, datastore, key)
			var rejected []cellog.Rejection
			if err == nil {
				rejected, err = rejectedOn(ctx, n, datastore, key)
			}
			master := n.isWritable()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return nil
			}
			answered = true
			out.buffered = out.buffered || buffered
			if !fromMaster {
				out.rejected, fromMaster = rejected, master
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	if !answered {
		out.err = errors.Join(errs...)
	}
	return out
}

func bufferedOn(ctx context.Context, n *node, datastore string, key cellog.Key) (bool, error) {
	var one int
	err := n.read.QueryRowContext(ctx, "SELECT 1 FROM cellog_buffer.buffered_cells WHERE datastore = ? AND row_key = ? AND column_name = ? AND ref_key = ? LIMIT 1",
		datastore, key.Row[:], key.Column, int64(key.Ref)).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("node %s/%s: buffered_cells: %w", n.cluster, n.Name, err)
	}
	return true, nil
}

// inNumberedCopies says whether a server has a numbered copy of a key. The error
// says which did not tell.
func (s *Store) inNumberedCopies(ctx context.Context, datastore string, key cellog.Key) (bool, error) {
	shards, err := s.Shards(datastore)
	if err != nil {
		return false, err
	}
	shard := cellog.ShardOf(key.Row, shards)
	owner, err := s.owner(datastore, shard)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var errs []error
	holders, _ := s.holders(owner)
	for _, n := range holders {
		rows, err := n.read.QueryContext(ctx, "SELECT epoch, first_id, last_id, tag, cells FROM cellog_buffer.numbered_copies WHERE cluster = ? AND datastore = ? AND shard = ? ORDER BY epoch DESC, last_id DESC", owner, datastore, int(shard))
		found := false
		if err == nil {
			err = each(rows, func() error {
				var r CopyRef
				var packed []byte
				if err := rows.Scan(&r.Epoch, &r.FirstID, &r.LastID, &r.tag, &packed); err != nil {
					return err
				}
				cells, err := r.parse(packed, shard)
				if err != nil {
					return err
				}
				if found = slices.ContainsFunc(cells, func(c cellog.Cell) bool { return c.Key == key }); found {
					return errEnough
				}
				return nil
			})
		}
		if found {
			return true, nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s/%s: numbered_copies: %w", n.cluster, n.Name, err))
		}
	}
	return false, errors.Join(errs...)
}

func rejectedOn(ctx context.Context, n *node, datastore string, key cellog.Key) ([]cellog.Rejection, error) {
	rows, err := n.read.QueryContext(ctx, "SELECT reason, COALESCE(winner_epoch, 0), COALESCE(winner_added_id, 0), rejected_at FROM cellog_buffer.rejected_cells "+
		"WHERE datastore = ? AND row_key = ? AND column_name = ? AND ref_key = ? ORDER BY id LIMIT 100", datastore, key.Row[:], key.Column, int64(key.Ref))
	if err != nil {
		return nil, fmt.Errorf("node %s/%s: rejected_cells: %w", n.cluster, n.Name, err)
	}
	var out []cellog.Rejection
	err = each(rows, func() error {
		var r cellog.Rejection
		if err := rows.Scan(&r.Reason, &r.WinnerEpoch, &r.WinnerAddedID, &r.RejectedAt); err != nil {
			return err
		}
		out = append(out, r)
		return nil
	})
	return out, err
}
