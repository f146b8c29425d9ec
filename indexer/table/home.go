package table

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
)

// shardsOf returns the shards of the rows' home rows.
func shardsOf(rows []*row) []cellog.ShardID {
	out := make([]cellog.ShardID, len(rows))
	for i, r := range rows {
		out[i] = r.in.Shard
	}
	return out
}

// lockHomes are the reads that take the sources' locks and read the home rows,
// which nobody else can change from then on.
func (a *applying) lockHomes(h *home) (reads []read) {
	sources := map[source]bool{}
	byIndex := map[*indexer.Index][]*row{}
	for _, r := range h.rows {
		sources[source{a.batch.Datastore, r.ix.Name(), r.in.Shard}] = true
		byIndex[r.ix] = append(byIndex[r.ix], r)
	}
	if len(sources) == 0 {
		return nil
	}
	h.held = map[source]int64{}
	reads = append(reads, lockNumbers(a.batch.Datastore, sources, h.held))
	for ix, rows := range byIndex {
		reads = append(reads, readHomes(ix, rows)...)
	}
	return reads
}

// join joins the batch into the home rows that were read.
func (a *applying) join(h *home) (numbers *stmt) {
	h.taken = a.t.takeNumbers(h.held)
	for _, r := range h.rows {
		r.changed = r.ix.Join(&r.state, r.in.State)
	}
	return setNumbers(h.taken)
}

// homeColumns are the columns of a home row in the order of scanHome.
func homeColumns(ix *indexer.Index) string {
	var b strings.Builder
	b.WriteString("row_key, removals")
	for i := range ix.Columns() {
		fmt.Fprintf(&b, ", ref_%d, added_%d", i+1, i+1)
	}
	for _, f := range ix.Fields() {
		b.WriteString(", " + fieldColumn(f))
	}
	return b.String()
}

// readHomes reads the states of the rows' home rows; a row without one has an
// empty state afterwards.
func readHomes(ix *indexer.Index, rows []*row) (reads []read) {
	byShard := map[cellog.ShardID][]*row{}
	byKey := make(map[uuid.UUID]*row, len(rows))
	for _, r := range rows {
		r.state = ix.NewState()
		byShard[r.in.Shard] = append(byShard[r.in.Shard], r)
		byKey[r.in.Key] = r
	}
	scan := scanHome(ix, func(key uuid.UUID, s indexer.State) error {
		if r := byKey[key]; r != nil {
			r.state = s
		}
		return nil
	})
	columns := homeColumns(ix)
	var b strings.Builder
	var args []any
	flush := func() {
		if b.Len() > 0 {
			reads = append(reads, read{query: b.String(), args: args, row: scan})
		}
		b.Reset()
		args = nil
	}
	for shard, rs := range byShard {
		for len(rs) > 0 {
			n := min(len(rs), maxRows)
			if len(args)+n > maxPacket {
				flush()
			}
			if b.Len() > 0 {
				b.WriteString(" UNION ALL ")
			}
			fmt.Fprintf(&b, "SELECT %s FROM %s WHERE row_key IN (%s)", columns, homeTable(ix, shard), placeholders(n))
			for _, r := range rs[:n] {
				args = append(args, r.in.Key[:])
			}
			rs = rs[n:]
		}
	}
	flush()
	return reads
}

// scanHome calls fn with the home row in a row of a query for homeColumns.
func scanHome(ix *indexer.Index, fn func(uuid.UUID, indexer.State) error) func(*sql.Rows) error {
	columns, fields := ix.Columns(), ix.Fields()
	var key, removals sql.RawBytes
	numbers := make([]sql.NullInt64, 2*len(columns))
	values := make([]sql.RawBytes, len(fields))
	dest := []any{&key, &removals}
	for i := range numbers {
		dest = append(dest, &numbers[i])
	}
	for i := range values {
		dest = append(dest, &values[i])
	}
	return func(rows *sql.Rows) error {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		id, err := uuid.FromBytes(key)
		if err != nil {
			return err
		}
		s := ix.NewState()
		for i := range columns {
			if numbers[2*i].Valid {
				s.Columns[i] = indexer.Newest{Set: true, Ref: cellog.RefKey(numbers[2*i].Int64), Added: cellog.AddedID(numbers[2*i+1].Int64)}
			}
		}
		for i, f := range fields {
			if s.Fields[i], err = indexer.FromSQL(f.Type, values[i]); err != nil {
				return fmt.Errorf("index %s: home row %s: field %s: %w", ix, id, f.Name, err)
			}
		}
		if s.Removals, err = parseRemovals(fields[0].Type, removals); err != nil {
			return fmt.Errorf("index %s: home row %s: removals: %w", ix, id, err)
		}
		return fn(id, s)
	}
}

// homeStmts writes the home rows that have changed, whole: their old content
// is known and locked.
func homeStmts(rows []*row) []*stmt {
	type key struct {
		ix    *indexer.Index
		shard cellog.ShardID
	}
	open := map[key]*stmt{}
	var stmts []*stmt
	for _, r := range rows {
		if !r.changed {
			continue
		}
		k := key{r.ix, r.in.Shard}
		s := open[k]
		if s == nil || s.full() {
			s = &stmt{head: "REPLACE INTO " + homeTable(r.ix, r.in.Shard) + " (version, " + homeColumns(r.ix) + ") VALUES"}
			open[k] = s
			stmts = append(stmts, s)
		}
		v := r.state.Version()
		args := make([]any, 0, 3+2*len(r.state.Columns)+len(r.state.Fields))
		args = append(args, v[:], r.in.Key[:], formatRemovals(r.state.Removals))
		for _, c := range r.state.Columns {
			if c.Set {
				args = append(args, int64(c.Ref), int64(c.Added))
			} else {
				args = append(args, nil, nil)
			}
		}
		for _, f := range r.state.Fields {
			args = append(args, f.SQL())
		}
		s.row(args...)
	}
	return stmts
}

// forgetStmts takes away the removals that were carried out.
func forgetStmts(rows []*row) []*stmt {
	type key struct {
		ix    *indexer.Index
		shard cellog.ShardID
	}
	open := map[key]*stmt{}
	var stmts []*stmt
	for _, r := range rows {
		if len(r.state.Removals) == 0 {
			continue
		}
		k := key{r.ix, r.in.Shard}
		s := open[k]
		if s == nil || s.full() {
			s = &stmt{head: "UPDATE " + homeTable(r.ix, r.in.Shard) + " SET removals = NULL WHERE row_key IN (", group: "?", tail: ")"}
			open[k] = s
			stmts = append(stmts, s)
		}
		s.row(r.in.Key[:])
	}
	return stmts
}

// Removals are kept as a JSON array of the values' texts.
func formatRemovals(values []indexer.Value) any {
	if len(values) == 0 {
		return nil
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.Text()
	}
	b, err := json.Marshal(texts)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return b
}

func parseRemovals(t indexer.Type, raw []byte) ([]indexer.Value, error) {
	if raw == nil {
		return nil, nil
	}
	var texts []string
	if err := json.Unmarshal(raw, &texts); err != nil {
		return nil, err
	}
	values := make([]indexer.Value, len(texts))
	for i, text := range texts {
		v, err := indexer.Parse(t, text)
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}
