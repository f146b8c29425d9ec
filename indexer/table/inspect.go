package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
)

var _ indexer.Inspector = (*Tables)(nil)

// Shards returns the number of shards of the index's datastore.
func (t *Tables) Shards(ctx context.Context, ix *indexer.Index) (int, error) {
	return t.cfg.Places.Shards(ctx, ix.Datastore())
}

// Homes returns those home rows of a shard that there are.
func (t *Tables) Homes(ctx context.Context, ix *indexer.Index, shard cellog.ShardID, keys []uuid.UUID) ([]indexer.HomeRow, error) {
	args := make([]any, len(keys))
	for i := range keys {
		args[i] = keys[i][:]
	}
	return t.homeRows(ctx, ix, shard, "WHERE row_key IN ("+placeholders(len(keys))+")", args)
}

// ScanHomes returns a shard's next home rows by row key.
func (t *Tables) ScanHomes(ctx context.Context, ix *indexer.Index, shard cellog.ShardID, after *uuid.UUID, limit int) ([]indexer.HomeRow, error) {
	where, args := "", []any(nil)
	if after != nil {
		where, args = "WHERE row_key > ?", []any{after[:]}
	}
	return t.homeRows(ctx, ix, shard, fmt.Sprintf("%s ORDER BY row_key LIMIT %d", where, limit), args)
}

func (t *Tables) homeRows(ctx context.Context, ix *indexer.Index, shard cellog.ShardID, where string, args []any) ([]indexer.HomeRow, error) {
	db, _, err := t.cfg.Places.ShardDB(ctx, ix.Datastore(), shard)
	if err != nil {
		return nil, err
	}
	var out []indexer.HomeRow
	query := "SELECT " + homeColumns(ix) + " FROM " + homeTable(ix, shard) + " " + where
	err = readAll(ctx, db, []read{{query: query, args: args, row: scanHome(ix, func(key uuid.UUID, s indexer.State) error {
		out = append(out, indexer.HomeRow{Key: key, State: s})
		return nil
	})}})
	return out, err
}

// Entries returns those entries that there are.
func (t *Tables) Entries(ctx context.Context, ix *indexer.Index, at []indexer.EntryRow) ([]indexer.EntryRow, error) {
	byShard := map[cellog.ShardID]*stmt{}
	var out []indexer.EntryRow
	read := func(shard cellog.ShardID, s *stmt) error {
		es, err := t.entryRows(ctx, ix, shard, s.text(), s.args)
		out = append(out, es...)
		return err
	}
	for _, e := range at {
		s := byShard[e.Shard]
		if s == nil {
			s = &stmt{head: "WHERE", sep: " OR ", group: "(" + fieldColumn(ix.Fields()[0]) + " = ? AND row_key = ?)"}
			byShard[e.Shard] = s
		}
		s.row(e.Fields[0].SQL(), e.Key[:])
		if s.rows == maxRanges {
			if err := read(e.Shard, s); err != nil {
				return nil, err
			}
			delete(byShard, e.Shard)
		}
	}
	for shard, s := range byShard {
		if err := read(shard, s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ScanEntries returns a shard's next entries by shard value and row key.
func (t *Tables) ScanEntries(ctx context.Context, ix *indexer.Index, shard cellog.ShardID, after *indexer.EntryRow, limit int) ([]indexer.EntryRow, error) {
	field := fieldColumn(ix.Fields()[0])
	where, args := "", []any(nil)
	if after != nil {
		value := after.Fields[0].SQL()
		where = fmt.Sprintf("WHERE %[1]s > ? OR (%[1]s = ? AND row_key > ?) ", field)
		args = []any{value, value, after.Key[:]}
	}
	return t.entryRows(ctx, ix, shard, fmt.Sprintf("%sORDER BY %s, row_key LIMIT %d", where, field, limit), args)
}

func (t *Tables) entryRows(ctx context.Context, ix *indexer.Index, shard cellog.ShardID, where string, args []any) ([]indexer.EntryRow, error) {
	db, _, err := t.cfg.Places.ShardDB(ctx, ix.Datastore(), shard)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("SELECT row_key, version")
	for _, f := range ix.Fields() {
		b.WriteString(", " + fieldColumn(f))
	}
	rows, err := db.QueryContext(ctx, b.String()+" FROM "+entryTable(ix, shard)+" "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var key, version sql.RawBytes
	raw := make([]sql.RawBytes, len(ix.Fields()))
	dest := []any{&key, &version}
	for i := range raw {
		dest = append(dest, &raw[i])
	}
	var out []indexer.EntryRow
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		e := indexer.EntryRow{Shard: shard, Fields: make([]indexer.Value, len(raw))}
		copy(e.Key[:], key)
		copy(e.Version[:], version)
		for i, f := range ix.Fields() {
			if e.Fields[i], err = indexer.FromSQL(f.Type, raw[i]); err != nil {
				return nil, fmt.Errorf("entry %s: field %s: %w", e.Key, f.Name, err)
			}
		}
		out = append(out, e)
	}
	return out, rows.Err()
}
