package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

// ReadEntity returns the cells of one shard with after < added_id, in order,
// at most limit of them and no more than PageBytes of bodies, which are in
// stored form. db may be any server that holds the shard. The tailer reads so
// when the binlog is gone.
func ReadEntity(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	out, _, err := cells(ctx, db, datastore, shard, limit,
		"SELECT "+cellFields+" FROM "+quote(datastore, shard)+".entity WHERE added_id > ? ORDER BY added_id LIMIT "+strconv.Itoa(limit+1), int64(after))
	return out, err
}

// errNotFinal marks a node that does not have what is final of a shard.
var errNotFinal = errors.New("it does not have what is final")

// readingFinal is reading for what is given as final up to an added_id. A node
// whose shard is of an older epoch than the final mark is passed over like one that
// lacks it: it may be an old master that is back, and have other cells under final
// ids. One that merely lags is passed over too, since nothing tells the two apart,
// and so is one that has not all up to upTo: what it lacks would look like nothing.
func (s *Store) readingFinal(ctx context.Context, datastore string, shard cellog.ShardID, upTo cellog.AddedID, from cellog.ReadFrom, f func(ctx context.Context, db querier, name string) error) (cellog.Origin, error) {
	return s.reading(ctx, datastore, shard, from, func(ctx context.Context, db *sql.DB, name string) error {
		m, known := s.cfg.Marks.Mark(datastore, shard)
		if !known {
			return f(ctx, db, name)
		}
		// One snapshot: the node may be rebuilt meanwhile.
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // it changes nothing
		var epoch cellog.Epoch
		var last cellog.AddedID
		err = tx.QueryRowContext(ctx, "SELECT epoch, last_added_id FROM "+name+".shard_log WHERE id = 1").Scan(&epoch, &last)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("%w: its shard_log is empty", errNotFinal)
		case err != nil:
			return err
		case epoch < m.Epoch:
			return fmt.Errorf("%w: its shard is of epoch %d, final is epoch %d", errNotFinal, epoch, m.Epoch)
		case last < min(upTo, m.Last):
			return fmt.Errorf("%w: its shard ends at added_id %d, final is up to %d", errNotFinal, last, m.Last)
		}
		return f(ctx, tx, name)
	})
}

// Log returns a shard's cells with after < added_id <= upTo in order, Body in
// stored form, of one column unless it is empty. more says that the page ended
// before upTo.
func (s *Store) Log(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, column string, limit int, from cellog.ReadFrom) (out []cellog.Cell, more bool, o cellog.Origin, err error) {
	o, err = s.readingFinal(ctx, datastore, shard, upTo, from, func(ctx context.Context, db querier, name string) error {
		q := "SELECT " + cellFields + " FROM " + name + ".entity WHERE added_id > ? AND added_id <= ?"
		args := []any{int64(after), int64(upTo)}
		if column != "" {
			q += " AND column_name = ?"
			args = append(args, column)
		}
		q += " ORDER BY added_id LIMIT " + strconv.Itoa(limit+1)
		out, more, err = cells(ctx, db, datastore, shard, limit, q, args...)
		return err
	})
	return out, more, o, err
}

// Last returns the last added_id of a shard.
func (s *Store) Last(ctx context.Context, datastore string, shard cellog.ShardID, from cellog.ReadFrom) (last cellog.AddedID, err error) {
	_, err = s.reading(ctx, datastore, shard, from, func(ctx context.Context, db *sql.DB, name string) error {
		return db.QueryRowContext(ctx, "SELECT last_added_id FROM "+name+".shard_log WHERE id = 1").Scan(&last)
	})
	return last, err
}

// Before returns the highest added_id whose cell was created before a time,
// or zero. Both are dense and never fall, so it is a binary search.
func (s *Store) Before(ctx context.Context, datastore string, shard cellog.ShardID, at time.Time, from cellog.ReadFrom) (id cellog.AddedID, err error) {
	_, err = s.readingFinal(ctx, datastore, shard, 0, from, func(ctx context.Context, db querier, name string) error {
		var hi cellog.AddedID
		if err := db.QueryRowContext(ctx, "SELECT COALESCE(MAX(added_id), 0) FROM "+name+".entity").Scan(&hi); err != nil {
			return err
		}
		lo := cellog.AddedID(0) // lo was created before, hi+1 was not
		for lo < hi {
			mid := lo + (hi-lo+1)/2
			var created time.Time
			err := db.QueryRowContext(ctx, "SELECT created_at FROM "+name+".entity WHERE added_id = ?", int64(mid)).Scan(&created)
			if errors.Is(err, sql.ErrNoRows) {
				return storage.ErrDamaged
			}
			if err != nil {
				return err
			}
			if created.Before(at) {
				lo = mid
			} else {
				hi = mid - 1
			}
		}
		id = lo
		return nil
	})
	return id, err
}

// Sequences sets the Sequence of each cell of a page of Log that starts behind
// after, so that it counts the column's cells in the shard up to that cell.
// They are counted in the entity table, from the last known place on. Only
// pages of final cells may be counted, and with all columns or one: whatever
// Log's filter was, no cell of a column on the page may be missing between.
func (s *Store) Sequences(ctx context.Context, datastore string, shard cellog.ShardID, after cellog.AddedID, page []cellog.Cell, from cellog.ReadFrom) error {
	if len(page) == 0 {
		return nil
	}
	base := map[string]cellog.Sequence{}
	for _, c := range page {
		if _, ok := base[c.Column]; ok {
			continue
		}
		n, err := s.countUpTo(ctx, datastore, shard, c.Column, after, from)
		if err != nil {
			return err
		}
		base[c.Column] = n
	}
	for i := range page {
		c := &page[i]
		base[c.Column]++
		c.Sequence = base[c.Column]
	}
	last := page[len(page)-1].AddedID
	for column, n := range base {
		s.anchors.put(anchorKey{datastore, shard, column}, anchor{last, n})
	}
	return nil
}

// countUpTo counts a column's cells with added_id <= upTo.
func (s *Store) countUpTo(ctx context.Context, datastore string, shard cellog.ShardID, column string, upTo cellog.AddedID, from cellog.ReadFrom) (cellog.Sequence, error) {
	if upTo == 0 {
		return 0, nil
	}
	key := anchorKey{datastore, shard, column}
	a := s.anchors.get(key)
	if a.id == upTo {
		return a.n, nil
	}
	if a.id > upTo {
		a = anchor{}
	}
	var n cellog.Sequence
	_, err := s.readingFinal(ctx, datastore, shard, upTo, from, func(ctx context.Context, db querier, name string) error {
		hint := "" // a short way: along the primary key
		if upTo-a.id > 10_000 {
			hint = " FORCE INDEX (cell)" // a long one: the index has all that is needed, without bodies
		}
		return db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+name+".entity"+hint+" WHERE column_name = ? AND added_id > ? AND added_id <= ?",
			column, int64(a.id), int64(upTo)).Scan(&n)
	})
	if err != nil {
		return 0, err
	}
	s.anchors.put(key, anchor{upTo, a.n + n})
	return a.n + n, nil
}
