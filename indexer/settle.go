package indexer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// settle looks at what differed again and again, until it is right or the time
// is up; then it counts.
func (v *verifier) settle(ctx context.Context) error {
	deadline := time.Now().Add(v.Wait)
	var wrong map[uuid.UUID]found
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var err error
		if wrong, err = v.again(ctx); err != nil {
			return err
		}
		if v.extras, err = v.stillThere(ctx, v.extras); err != nil {
			return err
		}
		if len(wrong) == 0 && len(v.extras) == 0 || time.Now().Add(wait).After(deadline) {
			break
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
	for row, f := range wrong {
		v.count(row, f)
	}
	for _, e := range v.extras {
		v.countExtra(e)
	}
	return nil
}

// again returns those suspects that are still wrong; the others are forgotten.
func (v *verifier) again(ctx context.Context) (map[uuid.UUID]found, error) {
	byShard := map[cellog.ShardID][]uuid.UUID{}
	for row := range v.suspects {
		s := cellog.ShardOf(row, v.shards)
		byShard[s] = append(byShard[s], row)
	}
	wrong := map[uuid.UUID]found{}
	for shard, all := range byShard {
		for keys := range slices.Chunk(all, v.Page) {
			homes, err := v.readHomes(ctx, shard, keys)
			if err != nil {
				return nil, err
			}
			var present []HomeRow
			for _, row := range keys {
				want := v.suspects[row]
				home, ok := homes[row]
				if !ok {
					home = v.Index.NewState()
				} else {
					present = append(present, HomeRow{row, home})
				}
				if v.disagree(home, want) {
					// As far as the cells given say, what should be there?
					joined := home
					joined.Columns, joined.Fields = slices.Clone(home.Columns), slices.Clone(home.Fields)
					v.Index.Join(&joined, want)
					wrong[row] = stale
					if joined.Fields[0] != home.Fields[0] && !joined.Fields[0].Null() {
						wrong[row] = missing
					}
				}
			}
			bad, err := v.compare(ctx, present)
			if err != nil {
				return nil, err
			}
			for row, f := range bad {
				if wrong[row] == right {
					wrong[row] = f
				}
			}
		}
	}
	for row := range v.suspects {
		if wrong[row] == right {
			delete(v.suspects, row)
		}
	}
	return wrong, nil
}

// disagree says whether cells are not, or not rightly, in a home row.
func (v *verifier) disagree(home, cells State) bool {
	for c, n := range cells.Columns {
		from, to := v.Index.from[c], v.Index.from[c+1]
		if n.after(home.Columns[c]) || n.Set && n == home.Columns[c] && !slices.Equal(home.Fields[from:to], cells.Fields[from:to]) {
			return true
		}
	}
	return false
}

// stillThere returns those extra entries that are there and not wanted.
func (v *verifier) stillThere(ctx context.Context, extras []EntryRow) ([]EntryRow, error) {
	var there []EntryRow
	for page := range slices.Chunk(extras, v.Page) {
		es, err := v.Tables.Entries(ctx, v.Index, page)
		if err != nil {
			return nil, err
		}
		there = append(there, es...)
	}
	return v.unwanted(ctx, there)
}

func (v *verifier) count(row uuid.UUID, f found) {
	if f == missing {
		v.report.Missing++
		v.detail("missing: the entry of row %s", row)
		return
	}
	v.report.Stale++
	v.detail("stale: the entry, or the home row, of row %s", row)
}

func (v *verifier) countExtra(e EntryRow) {
	v.report.Extra++
	v.detail("extra: an entry of row %s in shard %d, which its home row does not have", e.Key, e.Shard)
}

func (v *verifier) detail(format string, args ...any) {
	v.Detail(fmt.Sprintf("index %s: ", v.Index) + fmt.Sprintf(format, args...))
}
