package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
)

// entry is an entry to write or to remove: the projection of a home row.
type entry struct {
	row   *row
	value indexer.Value // of the shard field: the current one, or one to remove
	shard cellog.ShardID
}

// project works out, from the home rows after the join, which entries to
// write and which to remove, and where.
func (a *applying) project(ctx context.Context) error {
	a.entries, a.removals = map[*sql.DB][]entry{}, map[*sql.DB][]entry{}
	add := func(to map[*sql.DB][]entry, r *row, v indexer.Value) error {
		e := entry{row: r, value: v, shard: v.Shard(a.shards)}
		at, err := a.route(ctx, e.shard)
		if err != nil {
			return err
		}
		to[at.db] = append(to[at.db], e)
		return nil
	}
	for i := range a.rows {
		r := &a.rows[i]
		if v := r.state.Fields[0]; !v.Null() {
			if err := add(a.entries, r, v); err != nil {
				return err
			}
		}
		for _, v := range r.state.Removals {
			if err := add(a.removals, r, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func targets(es []entry) []cellog.ShardID {
	out := make([]cellog.ShardID, len(es))
	for i, e := range es {
		out[i] = e.shard
	}
	return out
}

// target is a table of entries.
type target struct {
	ix    *indexer.Index
	shard cellog.ShardID
}

// entryStmts inserts or changes entries where the version is newer.
func entryStmts(es []entry) []*stmt {
	open := map[target]*stmt{}
	var stmts []*stmt
	for _, e := range es {
		k := target{e.row.ix, e.shard}
		s := open[k]
		if s == nil || s.full() {
			s = upsertEntries(e.row.ix, e.shard)
			open[k] = s
			stmts = append(stmts, s)
		}
		args := make([]any, 0, 2+len(e.row.state.Fields))
		for _, f := range e.row.state.Fields {
			args = append(args, f.SQL())
		}
		v := e.row.state.Version()
		s.row(append(args, e.row.in.Key[:], v[:])...)
	}
	return stmts
}

func upsertEntries(ix *indexer.Index, shard cellog.ShardID) *stmt {
	var into, set strings.Builder
	for i, f := range ix.Fields() {
		c := fieldColumn(f)
		into.WriteString(c + ", ")
		if i > 0 {
			fmt.Fprintf(&set, "%s = IF(VALUES(version) > version, VALUES(%s), %s), ", c, c, c)
		}
	}
	return &stmt{
		head: "INSERT INTO " + entryTable(ix, shard) + " (" + into.String() + "row_key, version) VALUES",
		// The version last: assignments see the ones before them.
		tail: " ON DUPLICATE KEY UPDATE " + set.String() + "version = IF(VALUES(version) > version, VALUES(version), version)",
	}
}

// removalStmts deletes entries that are older than the state which left their
// value.
func removalStmts(es []entry) []*stmt {
	open := map[target]*stmt{}
	var stmts []*stmt
	for _, e := range es {
		k := target{e.row.ix, e.shard}
		s := open[k]
		if s == nil || s.rows >= maxRanges {
			s = &stmt{
				head:  "DELETE FROM " + entryTable(e.row.ix, e.shard) + " WHERE",
				group: "(" + fieldColumn(e.row.ix.Fields()[0]) + " = ? AND row_key = ? AND version < ?)",
				sep:   " OR ",
			}
			open[k] = s
			stmts = append(stmts, s)
		}
		v := e.row.state.Version()
		s.row(e.value.SQL(), e.row.in.Key[:], v[:])
	}
	return stmts
}

// progressStmt says how far the batch's partitions are in this server's
// entries.
func (a *applying) progressStmt() *stmt {
	s := &stmt{
		head: "INSERT INTO cellog_meta.index_progress (datastore, index_name, topic, partition_id, next_offset) VALUES",
		tail: " ON DUPLICATE KEY UPDATE next_offset = GREATEST(next_offset, VALUES(next_offset))",
	}
	for _, p := range a.batch.Parts {
		for _, pr := range p.Progress {
			s.row(a.batch.Datastore, p.Index.Name(), pr.Topic, pr.Partition, pr.Next)
		}
	}
	return s
}

// appliedStmt says, on the server of the source shards, up to which cell
// everything is in the entries of all servers.
func (a *applying) appliedStmt(db *sql.DB) *stmt {
	s := &stmt{
		head: "INSERT INTO cellog_meta.index_applied (datastore, index_name, shard, column_name, added_id, created_at) VALUES",
		tail: " ON DUPLICATE KEY UPDATE created_at = GREATEST(created_at, VALUES(created_at)), added_id = GREATEST(added_id, VALUES(added_id))",
	}
	for _, p := range a.batch.Parts {
		for _, ap := range p.Applied {
			if a.routes[ap.Shard].db == db {
				s.row(a.batch.Datastore, p.Index.Name(), int(ap.Shard), ap.Column, int64(ap.AddedID), ap.CreatedAt.UTC().Format(time.DateTime+".000000"))
			}
		}
	}
	return s
}
