package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cellog/cellog"
)

// servers asks where a datastore's shards are and sorts them by server.
func (t *Tables) servers(ctx context.Context, datastore string) (shards int, by map[*sql.DB][]cellog.ShardID, err error) {
	shards, err = t.cfg.Places.Shards(ctx, datastore)
	if err != nil {
		return 0, nil, err
	}
	by = map[*sql.DB][]cellog.ShardID{}
	for s := range cellog.ShardID(shards) {
		db, _, err := t.cfg.Places.ShardDB(ctx, datastore, s)
		if err != nil {
			return 0, nil, err
		}
		by[db] = append(by[db], s)
	}
	return shards, by, nil
}

// inTx runs fn in a READ COMMITTED transaction on db in which it has entered
// the shards.
func (a *applying) inTx(ctx context.Context, db *sql.DB, shards []cellog.ShardID, fn func(context.Context, *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	err = a.enter(ctx, tx, shards)
	if err == nil {
		err = fn(ctx, tx)
	}
	if err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	return tx.Commit()
}

// ignoreDone: a rollback of a lost connection says nothing new.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// epochBlock bounds the shard_logs that one statement reads.
const epochBlock = 128

// enter takes the gates and then looks at the epochs: in that order, so that
// whoever closes a shard and then takes its gate has no index transaction
// behind him. The routes of the shards are known by then.
func (a *applying) enter(ctx context.Context, tx queryer, shards []cellog.ShardID) error {
	datastore := a.batch.Datastore
	shards = slices.Compact(slices.Sorted(slices.Values(shards)))
	return inBlocks(len(shards), epochBlock, func(from, to int) error {
		block := shards[from:to]
		args := []any{datastore}
		for _, p := range block {
			args = append(args, int(p))
		}
		gates, err := ints(ctx, tx, "SELECT shard FROM cellog_meta.index_gates WHERE datastore = ? AND shard IN ("+
			placeholders(len(block))+") LOCK IN SHARE MODE", args...)
		if err != nil {
			return err
		}
		if len(gates) != len(block) {
			return fmt.Errorf("%w: no gate of %d shards in cellog_meta.index_gates", ErrStaleRoute, len(block)-len(gates))
		}
		var b strings.Builder
		for i, p := range block {
			if i > 0 {
				b.WriteString(" UNION ALL ")
			}
			fmt.Fprintf(&b, "SELECT %d, epoch, state FROM `%s`.shard_log WHERE id = 1", p, cellog.DatabaseName(datastore, p))
		}
		rows, err := tx.QueryContext(ctx, b.String())
		if err != nil {
			return err
		}
		defer rows.Close()
		seen := 0
		for rows.Next() {
			var shard, epoch int
			var state string
			if err := rows.Scan(&shard, &epoch, &state); err != nil {
				return err
			}
			if e := a.routes[cellog.ShardID(shard)].epoch; e != cellog.Epoch(epoch) || state != "open" {
				return fmt.Errorf("%w: %s is %.20s in epoch %d, the route says open in %d", ErrStaleRoute,
					cellog.DatabaseName(datastore, cellog.ShardID(shard)), state, epoch, e)
			}
			seen++
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if seen != len(block) {
			return fmt.Errorf("%w: a shard_log is empty", ErrStaleRoute)
		}
		return nil
	})
}

func ints(ctx context.Context, tx queryer, query string, args ...any) ([]int64, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []int64
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, rows.Err()
}
