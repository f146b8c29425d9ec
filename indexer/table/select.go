package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/mysqlconn"
)

var sqlOps = map[indexer.Op]string{
	indexer.Equal: "=", indexer.NotEqual: "<>", indexer.Less: "<", indexer.LessOrEqual: "<=",
	indexer.Greater: ">", indexer.GreaterOrEqual: ">=", indexer.In: "IN",
}

// Select looks entries up in the shard of the shard field's value.
func (t *Tables) Select(ctx context.Context, s indexer.Select) (indexer.Selected, error) {
	var out indexer.Selected
	ix := s.Index
	shards, err := t.cfg.Places.Shards(ctx, ix.Datastore())
	if err != nil {
		return out, err
	}
	shard := s.Shard.Shard(shards)
	db, origin, err := t.cfg.Places.ReadDB(ctx, ix.Datastore(), shard, s.Read)
	if err != nil {
		return out, err
	}
	out.Origin = origin
	var state string
	err = db.QueryRowContext(ctx, `SELECT state FROM cellog_meta.index_states
		WHERE datastore = ? AND index_name = ? AND version = 1`, ix.Datastore(), ix.Name()).Scan(&state)
	if err == sql.ErrNoRows || mysqlconn.IsMissing(err) {
		return out, indexer.NotMade(ix)
	}
	if err != nil {
		return out, fmt.Errorf("index %s: state: %w", ix, err)
	}
	out.Building = state == stateBuilding

	// Names come from the checked definition, values are bound.
	var b strings.Builder
	b.WriteString("SELECT row_key")
	for _, f := range s.Fields {
		b.WriteString(", " + fieldColumn(ix.Fields()[f]))
	}
	fmt.Fprintf(&b, " FROM %s WHERE %s = ?", entryTable(ix, shard), fieldColumn(ix.Fields()[0]))
	args := []any{s.Shard.SQL()}
	for _, f := range s.Filters {
		fmt.Fprintf(&b, " AND %s %s ", fieldColumn(ix.Fields()[f.Field]), sqlOps[f.Op])
		if f.Op == indexer.In {
			b.WriteString("(" + placeholders(len(f.Values)) + ")")
		} else {
			b.WriteByte('?')
		}
		for _, v := range f.Values {
			args = append(args, v.SQL())
		}
	}
	if s.After != nil {
		b.WriteString(" AND row_key > ?")
		args = append(args, s.After[:])
	}
	fmt.Fprintf(&b, " ORDER BY row_key LIMIT %d", s.Limit)
	rows, err := db.QueryContext(ctx, b.String(), args...)
	if mysqlconn.IsMissing(err) {
		return out, indexer.NotMade(ix)
	}
	if err != nil {
		return out, fmt.Errorf("index %s: select: %w", ix, err)
	}
	defer rows.Close()
	var key sql.RawBytes
	raw := make([]sql.RawBytes, len(s.Fields))
	dest := []any{&key}
	for i := range raw {
		dest = append(dest, &raw[i])
	}
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return out, fmt.Errorf("index %s: select: %w", ix, err)
		}
		e := indexer.Entry{Values: make([]indexer.Value, len(raw))}
		if e.Row, err = uuid.FromBytes(key); err != nil {
			return out, fmt.Errorf("index %s: row_key: %w", ix, err)
		}
		for i, f := range s.Fields {
			if e.Values[i], err = indexer.FromSQL(ix.Fields()[f].Type, raw[i]); err != nil {
				return out, fmt.Errorf("index %s: entry %s: field %s: %w", ix, e.Row, ix.Fields()[f].Name, err)
			}
		}
		out.Entries = append(out.Entries, e)
	}
	if err := rows.Err(); err != nil {
		return out, fmt.Errorf("index %s: select: %w", ix, err)
	}
	return out, nil
}

// Progress returns the lowest progress of a partition on any server; a server
// that knows none counts as 0.
func (t *Tables) Progress(ctx context.Context, ix *indexer.Index, topic string, partition int32) (int64, error) {
	_, servers, err := t.servers(ctx, ix.Datastore())
	if err != nil {
		return 0, err
	}
	lowest := int64(-1)
	for db := range servers {
		var next int64
		err := db.QueryRowContext(ctx, `SELECT next_offset FROM cellog_meta.index_progress
			WHERE datastore = ? AND index_name = ? AND topic = ? AND partition_id = ?`,
			ix.Datastore(), ix.Name(), topic, partition).Scan(&next)
		if err != nil && err != sql.ErrNoRows {
			return 0, err
		}
		if lowest < 0 || next < lowest {
			lowest = next
		}
	}
	return max(lowest, 0), nil
}
