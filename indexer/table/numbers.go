package table

import (
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/cellog/cellog"
)

// lockNumbers takes the locks of the sources' rows on a server and puts their
// numbers into have.
func lockNumbers(datastore string, sources map[source]bool, have map[source]int64) read {
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
	return read{
		query: "SELECT index_name, shard, number FROM cellog_meta.index_sources WHERE datastore = ? AND index_name IN (" +
			placeholders(len(names)) + ") AND shard IN (" + placeholders(len(shards)) + ") FOR UPDATE",
		args: args,
		row: func(rows *sql.Rows) error {
			s := source{datastore: datastore}
			var n int64
			if err := rows.Scan(&s.index, &s.shard, &n); err != nil {
				return err
			}
			if sources[s] {
				have[s] = n
			}
			return nil
		},
		done: func() error {
			for s := range sources { // without a row there is no lock
				if _, ok := have[s]; !ok {
					return fmt.Errorf("index %s/%s: shard %d has no row in cellog_meta.index_sources: Ensure was not called", s.datastore, s.index, s.shard)
				}
			}
			return nil
		},
	}
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
// It changes have to the numbers in force, and returns which of them are new:
// they are ours once the transaction is committed with setNumbers of them.
func (t *Tables) takeNumbers(have map[source]int64) (taken map[source]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken = map[source]int64{}
	for s, n := range have {
		if ours, ok := t.numbers[s]; !ok || ours != n {
			have[s] = max(n, ours) + 1
			taken[s] = have[s]
		}
	}
	return taken
}

// keepNumbers records the numbers of a committed transaction as ours.
func (t *Tables) keepNumbers(taken map[source]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.numbers, taken)
}

// checkNumbers returns ErrRefused if a server has a higher number than ours, and
// at home also a lower one; and the statement that makes it refuse lower ones
// from now on.
func checkNumbers(held, have map[source]int64, home bool) (*stmt, error) {
	raise := map[source]int64{}
	for s, n := range have {
		switch {
		case n > held[s] || home && n != held[s]:
			return nil, fmt.Errorf("%w: %s/%s from shard %d: ours is %d, theirs %d", ErrRefused, s.datastore, s.index, s.shard, held[s], n)
		case n < held[s]:
			raise[s] = held[s]
		}
	}
	return setNumbers(raise), nil
}
