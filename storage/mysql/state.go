package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

// State says what is known of a key: it asks the shard, and then every
// server's buffer for copies and rejections. The error is set when the shard
// could not be asked; a server of other clusters that does not answer leaves
// its buffer out.
func (s *Store) State(ctx context.Context, datastore string, key cellog.Key) (cellog.CellState, error) {
	st := cellog.CellState{State: cellog.StateUnknown}
	c, _, err := s.Version(ctx, datastore, key, cellog.Master)
	switch {
	case err == nil:
		c.Body = nil
		st.State, st.Cell = cellog.StateStored, &c
	case !errors.Is(err, storage.ErrNotFound):
		return st, err
	}
	buffered := false
	for _, cl := range s.clusters {
		for _, n := range cl.nodes {
			n.mu.Lock()
			seen := n.seen && n.writable
			n.mu.Unlock()
			if !seen {
				continue
			}
			b, err := bufferedOn(ctx, n, datastore, key)
			if err != nil {
				continue
			}
			buffered = buffered || b
			rs, err := rejectedOn(ctx, n, datastore, key)
			if err == nil {
				st.Rejected = append(st.Rejected, rs...)
			}
		}
	}
	switch {
	case st.State == cellog.StateStored:
	case buffered:
		st.State = cellog.StateBuffered
	case len(st.Rejected) > 0:
		st.State = cellog.StateRejected
	}
	return st, nil
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
