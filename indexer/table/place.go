package table

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
)

// servers asks where a datastore's shards are and sorts them by server.
func (t *Tables) servers(ctx context.Context, datastore string) (shards int, by map[*sql.DB][]cellog.ShardID, err error) {
	by, of, err := t.places(ctx, datastore)
	return len(of), by, err
}

// places is servers with the shards' epochs.
func (t *Tables) places(ctx context.Context, datastore string) (map[*sql.DB][]cellog.ShardID, epochs, error) {
	shards, err := t.cfg.Places.Shards(ctx, datastore)
	if err != nil {
		return nil, nil, err
	}
	by, of := map[*sql.DB][]cellog.ShardID{}, epochs{}
	for s := range cellog.ShardID(shards) {
		db, epoch, err := t.cfg.Places.ShardDB(ctx, datastore, s)
		if err != nil {
			return nil, nil, err
		}
		by[db] = append(by[db], s)
		of[s] = epoch
	}
	return by, of, nil
}

// Settled returns nil while the shards are where they were at the index's
// Ensure, indexer.ErrMoved when one has gone to another server or epoch: there
// the tables are those of an earlier time.
func (t *Tables) Settled(ctx context.Context, ix *indexer.Index) error {
	_, now, err := t.places(ctx, ix.Datastore())
	if err != nil {
		return err
	}
	t.mu.Lock()
	then, ok := t.settled[ix]
	t.mu.Unlock()
	if ok && !maps.Equal(then, now) {
		return fmt.Errorf("index %s: %w", ix, indexer.ErrMoved)
	}
	return nil
}

// epochBlock bounds the shard_logs that one statement reads.
const epochBlock = 128

// enter takes the gates and then looks at the epochs: in that order, so that
// whoever closes a shard and then takes its gate has no index transaction
// behind him. The routes of the shards are known by then.
func (a *applying) enter(shards []cellog.ShardID) (reads []read) {
	datastore := a.batch.Datastore
	shards = slices.Compact(slices.Sorted(slices.Values(shards)))
	_ = inBlocks(len(shards), epochBlock, func(from, to int) error {
		block := shards[from:to]
		args := []any{datastore}
		var b strings.Builder
		for i, p := range block {
			args = append(args, int(p))
			if i > 0 {
				b.WriteString(" UNION ALL ")
			}
			fmt.Fprintf(&b, "SELECT %d, epoch, state FROM `%s`.shard_log WHERE id = 1", p, cellog.DatabaseName(datastore, p))
		}
		gates, logs := 0, 0
		reads = append(reads, read{
			query: "SELECT shard FROM cellog_meta.index_gates WHERE datastore = ? AND shard IN (" + placeholders(len(block)) + ") LOCK IN SHARE MODE",
			args:  args,
			row:   func(*sql.Rows) error { gates++; return nil },
			done: func() error {
				if gates != len(block) {
					return fmt.Errorf("%w: no gate of %d shards in cellog_meta.index_gates", ErrStaleRoute, len(block)-gates)
				}
				return nil
			},
		}, read{
			query: b.String(),
			row: func(rows *sql.Rows) error {
				var shard, epoch int
				var state string
				if err := rows.Scan(&shard, &epoch, &state); err != nil {
					return err
				}
				if e := a.routes[cellog.ShardID(shard)].epoch; e != cellog.Epoch(epoch) || state != "open" {
					return fmt.Errorf("%w: %s is %.20s in epoch %d, the route says open in %d", ErrStaleRoute,
						cellog.DatabaseName(datastore, cellog.ShardID(shard)), state, epoch, e)
				}
				logs++
				return nil
			},
			done: func() error {
				if logs != len(block) {
					return fmt.Errorf("%w: a shard_log is empty", ErrStaleRoute)
				}
				return nil
			},
		})
		return nil
	})
	return reads
}
