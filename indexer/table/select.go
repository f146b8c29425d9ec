package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/mysqlconn"
)

var sqlOps = map[indexer.Op]string{
	indexer.Equal: "=", indexer.NotEqual: "<>", indexer.Less: "<", indexer.LessOrEqual: "<=",
	indexer.Greater: ">", indexer.GreaterOrEqual: ">=", indexer.In: "IN",
}

// Select looks entries up in the shard of the shard field's value. When the
// node that was asked for cannot be reached, one of the other kind answers; a
// minion in the master's place is marked stale.
func (t *Tables) Select(ctx context.Context, s indexer.Select) (indexer.Selected, error) {
	shards, err := t.cfg.Places.Shards(ctx, s.Index.Datastore())
	if err != nil {
		return indexer.Selected{}, err
	}
	shard := s.Shard.Shard(shards)
	other := cellog.Minion
	if s.Read == cellog.Minion {
		other = cellog.Master
	}
	var asked *sql.DB
	for _, from := range []cellog.ReadFrom{s.Read, other} {
		db, origin, rerr := t.cfg.Places.ReadDB(ctx, s.Index.Datastore(), shard, from)
		if rerr != nil {
			err = rerr
			continue
		}
		if db == asked {
			break
		}
		asked = db
		if s.Read == cellog.Master && origin.From == cellog.Minion {
			origin.Stale = true
		}
		var out indexer.Selected
		if out, err = t.selectFrom(ctx, db, shard, s); err == nil {
			out.Origin = origin
			return out, nil
		}
		if !mysqlconn.IsLost(err) || ctx.Err() != nil {
			break
		}
	}
	if mysqlconn.IsLost(err) && ctx.Err() == nil {
		return indexer.Selected{}, indexer.Unavailable(s.Index)
	}
	return indexer.Selected{}, err
}

func (t *Tables) selectFrom(ctx context.Context, db *sql.DB, shard cellog.ShardID, s indexer.Select) (indexer.Selected, error) {
	ix, out := s.Index, indexer.Selected{}
	state, err := t.state(ctx, db, ix)
	if err != nil {
		return out, err
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

// stateFor is how long a state that was read is believed: it spares queries a
// round trip.
const stateFor = time.Second

type seenKey struct {
	db *sql.DB
	ix *indexer.Index
}

type seenState struct {
	state string
	until time.Time
}

// state returns the state of an index on a server.
func (t *Tables) state(ctx context.Context, db *sql.DB, ix *indexer.Index) (string, error) {
	k := seenKey{db, ix}
	t.mu.Lock()
	seen := t.states[k]
	t.mu.Unlock()
	if time.Now().Before(seen.until) {
		return seen.state, nil
	}
	var state string
	err := db.QueryRowContext(ctx, `SELECT state FROM cellog_meta.index_states
		WHERE datastore = ? AND index_name = ? AND version = 1`, ix.Datastore(), ix.Name()).Scan(&state)
	if err == sql.ErrNoRows || mysqlconn.IsMissing(err) {
		return "", indexer.NotMade(ix)
	}
	if err != nil {
		return "", fmt.Errorf("index %s: state: %w", ix, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.states[k] = seenState{state, time.Now().Add(stateFor)}
	return state, nil
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
