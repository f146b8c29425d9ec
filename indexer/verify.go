package indexer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Inspector reads index tables whole, to compare them. The adapter is
// indexer/table.
type Inspector interface {
	// Shards returns the number of shards of the index's datastore.
	Shards(ctx context.Context, ix *Index) (int, error)
	// Homes returns those home rows of a shard that there are.
	Homes(ctx context.Context, ix *Index, shard cellog.ShardID, keys []uuid.UUID) ([]HomeRow, error)
	// ScanHomes returns a shard's next home rows by row key, after nil the
	// first ones; fewer than limit at the end.
	ScanHomes(ctx context.Context, ix *Index, shard cellog.ShardID, after *uuid.UUID, limit int) ([]HomeRow, error)
	// Entries returns those entries that there are, in any order, with all
	// they hold: Shard, Key and the shard field say which.
	Entries(ctx context.Context, ix *Index, at []EntryRow) ([]EntryRow, error)
	// ScanEntries returns a shard's next entries by shard value and row key,
	// after nil the first ones; fewer than limit at the end.
	ScanEntries(ctx context.Context, ix *Index, shard cellog.ShardID, after *EntryRow, limit int) ([]EntryRow, error)
}

// HomeRow is a home row.
type HomeRow struct {
	Key   uuid.UUID
	State State
}

// EntryRow is an entry with all its fields.
type EntryRow struct {
	// Shard is where it lies.
	Shard   cellog.ShardID
	Key     uuid.UUID
	Version Version
	Fields  []Value
}

// VerifyConfig says what Verify compares.
type VerifyConfig struct {
	// Index and Tables are required.
	Index  *Index
	Tables Inspector
	// Cells returns the cells of a shard that the index must have, in any
	// order; cells of other columns may be among them, and are left out. One
	// that cannot be read comes without a column: what the index has of it is
	// taken as right.
	// Required.
	Cells func(ctx context.Context, shard cellog.ShardID) iter.Seq2[cellog.Cell, error]
	// UpTo returns the added_id up to which Cells returns a shard's cells: what
	// home rows know of below it and Cells does not return is extra. Default:
	// the highest that Cells returned.
	UpTo func(shard cellog.ShardID) cellog.AddedID
	// Wait bounds the wait for an index that is behind or busy: what differs
	// is looked at again until then. Default 10 s; negative: not at all.
	Wait time.Duration
	// Page is the number of rows that are compared together. Default 500.
	Page int
	// Detail is told of each difference. Default: nobody.
	Detail func(text string)
}

// Report is what Verify found. Each row is counted once under each name.
type Report struct {
	Index   *Index
	Entries int64
	// Missing are entries that are not there, Stale ones with other values
	// than their cells, Extra ones that belong to no cell.
	Missing, Stale, Extra int64
}

// MaxDifferences bounds the rows that Verify looks at again, and so its
// memory. What comes on top is counted as it was seen first.
const MaxDifferences = 100_000

// Verify compares an index with the cells, while writes go on: what is newer
// than the cells it was given is right. Its memory is bounded by a page and
// the differences. It compares the cells with the home rows, the home rows
// with the entries, and the entries with the home rows.
func Verify(ctx context.Context, cfg VerifyConfig) (Report, error) {
	if cfg.Index == nil || cfg.Tables == nil || cfg.Cells == nil {
		return Report{}, errors.New("indexer: verify: Index, Tables and Cells are required")
	}
	if cfg.Page <= 0 {
		cfg.Page = 500
	}
	if cfg.Wait == 0 {
		cfg.Wait = 10 * time.Second
	}
	if cfg.Detail == nil {
		cfg.Detail = func(string) {}
	}
	v := &verifier{VerifyConfig: cfg, report: Report{Index: cfg.Index}, suspects: map[uuid.UUID]State{}}
	var err error
	if v.shards, err = cfg.Tables.Shards(ctx, cfg.Index); err != nil {
		return Report{}, err
	}
	for s := range cellog.ShardID(v.shards) {
		if err := v.cells(ctx, s); err != nil {
			return Report{}, fmt.Errorf("verify index %s: cells of shard %d: %w", cfg.Index, s, err)
		}
		if err := v.homes(ctx, s); err != nil {
			return Report{}, fmt.Errorf("verify index %s: home rows of shard %d: %w", cfg.Index, s, err)
		}
	}
	for s := range cellog.ShardID(v.shards) {
		if err := v.entries(ctx, s); err != nil {
			return Report{}, fmt.Errorf("verify index %s: entries of shard %d: %w", cfg.Index, s, err)
		}
	}
	if err := v.settle(ctx); err != nil {
		return Report{}, fmt.Errorf("verify index %s: %w", cfg.Index, err)
	}
	return v.report, nil
}

type verifier struct {
	VerifyConfig
	shards int
	report Report
	// suspects are rows that differ, with what is known of their cells: the
	// join of those that the home row does not have.
	suspects map[uuid.UUID]State
	// extras are entries that their home rows do not want.
	extras []EntryRow
	// Of the shard in work: the number of cells that are a home row's newest,
	// the highest added_id that was given, and the cells that nobody can read.
	matched    int64
	bound      cellog.AddedID
	unreadable map[cellog.AddedID]bool
}

// suspect notes a row whose cells are, or include, s; false if there are too
// many.
func (v *verifier) suspect(row uuid.UUID, s State) bool {
	have, ok := v.suspects[row]
	if !ok {
		if len(v.suspects) >= MaxDifferences {
			return false
		}
		have = v.Index.NewState()
	}
	v.Index.Join(&have, s)
	v.suspects[row] = have
	return true
}

// cells compares a shard's cells with its home rows.
func (v *verifier) cells(ctx context.Context, shard cellog.ShardID) error {
	v.matched, v.bound, v.unreadable = 0, 0, map[cellog.AddedID]bool{}
	if v.UpTo != nil {
		v.bound = v.UpTo(shard)
	}
	var page []cellog.Cell
	for c, err := range v.Cells(ctx, shard) {
		if err != nil {
			return err
		}
		v.bound = max(v.bound, c.AddedID)
		if c.Column == "" {
			v.unreadable[c.AddedID] = true
		}
		if v.Index.column(c.Column) < 0 {
			continue
		}
		if page = append(page, c); len(page) >= v.Page {
			if err := v.cellPage(ctx, shard, page); err != nil {
				return err
			}
			page = page[:0]
		}
	}
	return v.cellPage(ctx, shard, page)
}

func (v *verifier) cellPage(ctx context.Context, shard cellog.ShardID, page []cellog.Cell) error {
	seen := map[uuid.UUID]bool{}
	var keys []uuid.UUID
	for _, c := range page {
		if !seen[c.Row] {
			seen[c.Row] = true
			keys = append(keys, c.Row)
		}
	}
	homes, err := v.readHomes(ctx, shard, keys)
	if err != nil {
		return err
	}
	fields := make([]Value, len(v.Index.fields))
	for i := range page {
		c := &page[i]
		column := v.Index.column(c.Column)
		home, ok := homes[c.Row]
		if !ok {
			home = v.Index.NewState()
		}
		cell := Newest{Set: true, Ref: c.Ref, Added: c.AddedID}
		known := home.Columns[column]
		if known.after(cell) {
			continue
		}
		v.Index.Extract(column, c.Body, fields)
		from, to := v.Index.from[column], v.Index.from[column+1]
		if known == cell && slices.Equal(home.Fields[from:to], fields[from:to]) {
			v.matched++
			continue
		}
		if known == cell {
			v.matched++
		}
		want := v.Index.NewState()
		want.Columns[column] = cell
		copy(want.Fields[from:to], fields[from:to])
		if !v.suspect(c.Row, want) {
			v.report.Missing++
		}
	}
	return nil
}

func (v *verifier) readHomes(ctx context.Context, shard cellog.ShardID, keys []uuid.UUID) (map[uuid.UUID]State, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := v.Tables.Homes(ctx, v.Index, shard, keys)
	if err != nil {
		return nil, err
	}
	homes := make(map[uuid.UUID]State, len(rows))
	for _, r := range rows {
		homes[r.Key] = r.State
	}
	return homes, nil
}

// homes compares a shard's home rows with their entries.
func (v *verifier) homes(ctx context.Context, shard cellog.ShardID) error {
	var after *uuid.UUID
	newest := int64(0)
	for {
		page, err := v.Tables.ScanHomes(ctx, v.Index, shard, after, v.Page)
		if err != nil {
			return err
		}
		for _, h := range page {
			for _, n := range h.State.Columns {
				if n.Set && n.Added <= v.bound && !v.unreadable[n.Added] {
					newest++
				}
			}
		}
		wrong, err := v.compare(ctx, page)
		if err != nil {
			return err
		}
		for row, found := range wrong {
			if !v.suspect(row, v.Index.NewState()) {
				v.count(row, found)
			}
		}
		if len(page) < v.Page {
			break
		}
		after = &page[len(page)-1].Key
	}
	// A home row that goes on while it is compared is matched and then not
	// newest any more, never the other way round.
	if n := newest - v.matched; n > 0 {
		v.report.Extra += n
		v.detail("extra: shard %d: %d cells in home rows that are no cells", shard, n)
	}
	return nil
}

type found int

const (
	right found = iota
	missing
	stale
)

// compare looks for the entries of home rows and returns the rows whose
// entries are missing or stale.
func (v *verifier) compare(ctx context.Context, homes []HomeRow) (map[uuid.UUID]found, error) {
	var wanted []HomeRow
	var at []EntryRow
	for _, h := range homes {
		if value := h.State.Fields[0]; !value.Null() {
			wanted = append(wanted, h)
			at = append(at, EntryRow{Shard: value.Shard(v.shards), Key: h.Key, Fields: h.State.Fields})
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	entries, err := v.Tables.Entries(ctx, v.Index, at)
	if err != nil {
		return nil, err
	}
	byKey := make(map[uuid.UUID]EntryRow, len(entries))
	for _, e := range entries {
		byKey[e.Key] = e
	}
	wrong := map[uuid.UUID]found{}
	ahead := map[cellog.ShardID][]uuid.UUID{}
	for _, h := range wanted {
		e, ok := byKey[h.Key]
		version := h.State.Version()
		switch {
		case !ok:
			wrong[h.Key] = missing
		case newer(e.Version, version):
			s := cellog.ShardOf(h.Key, v.shards)
			ahead[s] = append(ahead[s], h.Key)
		case e.Version != version || !slices.Equal(e.Fields, h.State.Fields):
			wrong[h.Key] = stale
		}
	}
	// The row went on meanwhile, and then its home row, which is written first,
	// is no older than the entry was; or nothing will ever change that entry
	// again.
	for shard, keys := range ahead {
		now, err := v.readHomes(ctx, shard, keys)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if h, ok := now[key]; !ok || newer(byKey[key].Version, h.Version()) {
				wrong[key] = stale
			}
		}
	}
	return wrong, nil
}

func newer(a, b Version) bool { return bytes.Compare(a[:], b[:]) > 0 }

// entries compares a shard's entries with their home rows.
func (v *verifier) entries(ctx context.Context, shard cellog.ShardID) error {
	var after *EntryRow
	for {
		page, err := v.Tables.ScanEntries(ctx, v.Index, shard, after, v.Page)
		if err != nil {
			return err
		}
		v.report.Entries += int64(len(page))
		extra, err := v.unwanted(ctx, page)
		if err != nil {
			return err
		}
		for _, e := range extra {
			if len(v.extras) >= MaxDifferences {
				v.countExtra(e)
				continue
			}
			v.extras = append(v.extras, e)
		}
		if len(page) < v.Page {
			return nil
		}
		after = &page[len(page)-1]
	}
}

// unwanted returns the entries that do not lie where their home rows say.
func (v *verifier) unwanted(ctx context.Context, entries []EntryRow) ([]EntryRow, error) {
	byShard := map[cellog.ShardID][]EntryRow{}
	for _, e := range entries {
		s := cellog.ShardOf(e.Key, v.shards)
		byShard[s] = append(byShard[s], e)
	}
	var out []EntryRow
	for shard, es := range byShard {
		keys := make([]uuid.UUID, len(es))
		for i, e := range es {
			keys[i] = e.Key
		}
		homes, err := v.readHomes(ctx, shard, keys)
		if err != nil {
			return nil, err
		}
		for _, e := range es {
			if h, ok := homes[e.Key]; !ok || h.Fields[0] != e.Fields[0] || e.Shard != e.Fields[0].Shard(v.shards) {
				out = append(out, e)
			}
		}
	}
	return out, nil
}
