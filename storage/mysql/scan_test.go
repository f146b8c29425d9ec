package mysql

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

// A scan gives the same cells as ReadEntity, within its bounds; it ends at f's
// error and before a damaged cell, and sessions that died meanwhile do no harm.
func TestScanEntity(t *testing.T) {
	st := newOpenStore(t, 2, nil)
	ctx := t.Context()
	var puts []cellog.Put
	for i := range 20 {
		p := cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: []string{"BASE", "NOTES"}[i%2], Ref: cellog.RefKey(i - 10)}, Body: mustBody(t, `{"a":"\u0000é"}`)}
		if i%3 == 0 {
			p.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		}
		puts = append(puts, p)
	}
	if _, errs := st.Write(ctx, st.ds, 1, puts); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	scan := func(after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) (got []cellog.Cell, err error) {
		err = ScanEntity(ctx, st.db, st.ds, 1, after, upTo, limit, func(c *cellog.Cell) error {
			if f != nil {
				if err := f(c); err != nil {
					return err
				}
			}
			got = append(got, *c)
			got[len(got)-1].Body = append([]byte(nil), c.Body...)
			return nil
		})
		return got, err
	}
	want, err := ReadEntity(ctx, st.db, st.ds, 1, 0, 100)
	if err != nil || len(want) != 20 {
		t.Fatal(len(want), err)
	}
	got, err := scan(0, 100, 100, nil)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d cells, %v", len(got), err)
	}
	for i, c := range got {
		w := want[i]
		same := string(c.Body) == string(w.Body) && c.CreatedAt.Equal(w.CreatedAt)
		c.Body, w.Body, c.CreatedAt = nil, nil, w.CreatedAt
		if !same || c.ID() != w.ID() || c.Key != w.Key || c.Epoch != w.Epoch || c.TraceParent != w.TraceParent {
			t.Errorf("cell %d: %+v, want %+v", i, c, w)
		}
	}
	if got, err := scan(3, 8, 100, nil); err != nil || len(got) != 5 || got[0].AddedID != 4 {
		t.Errorf("after 3 up to 8: %d cells, %v", len(got), err)
	}
	if got, err := scan(3, 100, 2, nil); err != nil || len(got) != 2 || got[1].AddedID != 5 {
		t.Errorf("at most two: %d cells, %v", len(got), err)
	}
	enough := errors.New("enough")
	if got, err := scan(0, 100, 100, func(c *cellog.Cell) error {
		if c.AddedID == 4 {
			return enough
		}
		return nil
	}); !errors.Is(err, enough) || len(got) != 3 {
		t.Errorf("ended by f: %d cells, %v", len(got), err)
	}
	places := []Place{{st.ds, 0, 1}, {st.ds, 1, 7}}
	n := 0
	if err := CellsAt(ctx, st.db, places, func(p Place, c cellog.Cell) {
		if n++; p != places[1] || c.ID() != want[6].ID() || c.Key != want[6].Key || c.Epoch != want[6].Epoch {
			t.Errorf("at %+v: %+v", p, c)
		}
	}); err != nil || n != 1 {
		t.Errorf("%d cells at two places, one of them empty: %v", n, err)
	}
	t.Run("sessions that died", func(t *testing.T) {
		rows, err := st.db.Query("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command = 'Sleep'")
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		err = each(rows, func() error {
			var id int64
			defer func() { ids = append(ids, id) }()
			return rows.Scan(&id)
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			_, _ = st.db.ExecContext(context.Background(), "KILL ?", id) // it may be gone, or this one's
		}
		if got, err := scan(0, 100, 100, nil); err != nil || len(got) != 20 {
			t.Errorf("%d cells, %v", len(got), err)
		}
	})
	if _, err := st.db.Exec("UPDATE " + quote(st.ds, 1) + ".entity SET body = 'x' WHERE added_id = 6"); err != nil {
		t.Fatal(err)
	}
	if got, err := scan(0, 100, 100, nil); !errors.Is(err, storage.ErrDamaged) || len(got) != 5 {
		t.Errorf("damaged: %d cells, %v", len(got), err)
	}
}
