package table

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/cellog/cellog"
)

// lockNumbers takes the locks of the sources' rows on this server and returns
// their numbers.
func lockNumbers(ctx context.Context, tx *sql.Tx, datastore string, sources map[source]bool) (map[source]int64, error) {
	names, shards := map[string]bool{}, map[cellog.ShardID]bool{}
	for s := range sources {
		names[s.index], shards[s.shard] = true, true
	}
	args := []any{datastore}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		args = append(args, n)
	}
	for _, s := range slices.Sorted(maps.Keys(shards)) {
		args = append(args, int(s))
	}
	query := "SELECT index_name, shard, number FROM cellog_meta.index_sources WHERE datastore = ? AND index_name IN (" +
		placeholders(len(names)) + ") AND shard IN (" + placeholders(len(shards)) + ") FOR UPDATE"
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[source]int64{}
	for rows.Next() {
		s := source{datastore: datastore}
		var n int64
		if err := rows.Scan(&s.index, &s.shard, &n); err != nil {
			return nil, err
		}
		if sources[s] {
			out[s] = n
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for s := range sources {
		// Without a row there is no lock.
		if _, ok := out[s]; !ok {
			return nil, fmt.Errorf("index %s/%s: shard %d has no row in cellog_meta.index_sources: Ensure was not called", s.datastore, s.index, s.shard)
		}
	}
	return out, nil
}

func setNumbers(numbers map[source]int64) *stmt {
	s := &stmt{
		head: "INSERT INTO cellog_meta.index_sources (datastore, index_name, shard, number) VALUES",
		tail: " ON DUPLICATE KEY UPDATE number = VALUES(number)",
	}
	for src, n := range numbers {
		s.row(src.datastore, src.index, int(src.shard), n)
	}
	return s
}

// takeNumbers makes sure, at home, that the assignment numbers are ours: where
// another indexer has taken one since, or we have none yet, it takes the next.
// It returns the numbers in force, and which of them are new: they are ours
// once the transaction is committed.
func (t *Tables) takeNumbers(ctx context.Context, tx *sql.Tx, datastore string, sources map[source]bool) (held, taken map[source]int64, err error) {
	have, err := lockNumbers(ctx, tx, datastore, sources)
	if err != nil {
		return nil, nil, err
	}
	taken = map[source]int64{}
	t.mu.Lock()
	for s, n := range have {
		if ours, ok := t.numbers[s]; !ok || ours != n {
			have[s] = max(n, ours) + 1
			taken[s] = have[s]
		}
	}
	t.mu.Unlock()
	if len(taken) == 0 {
		return have, nil, nil
	}
	return have, taken, execAll(ctx, tx, false, []*stmt{setNumbers(taken)})
}

// keepNumbers records the numbers of a committed transaction as ours.
func (t *Tables) keepNumbers(taken map[source]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.numbers, taken)
}

// showNumbers shows our numbers to a server: it returns ErrRefused if it knows
// a higher one, and makes it refuse lower ones from now on.
func showNumbers(ctx context.Context, tx *sql.Tx, datastore string, held map[source]int64, home bool) error {
	sources := make(map[source]bool, len(held))
	for s := range held {
		sources[s] = true
	}
	have, err := lockNumbers(ctx, tx, datastore, sources)
	if err != nil {
		return err
	}
	raise := map[source]int64{}
	for s, n := range have {
		switch {
		case n > held[s] || home && n != held[s]:
			return fmt.Errorf("%w: %s/%s from shard %d: ours is %d, theirs %d", ErrRefused, s.datastore, s.index, s.shard, held[s], n)
		case n < held[s]:
			raise[s] = held[s]
		}
	}
	return execAll(ctx, tx, false, []*stmt{setNumbers(raise)})
}
