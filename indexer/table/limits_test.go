package table

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/schemas/indexdef"
)

// The widest definition, with the longest names, full of the longest strings.
func TestWidestIndex(t *testing.T) {
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			w := newWorld(t, shards, servers)
			var columns []indexdef.Column
			row := uuid.New()
			var cells []cellog.Cell
			long := strings.Repeat("x", indexer.MaxString)
			for c := range indexdef.MaxColumns {
				column := indexdef.Column{Key: fmt.Sprintf("C%02d", c) + strings.Repeat("_", 61)}
				body := map[string]string{}
				for f := range indexdef.MaxFields / indexdef.MaxColumns {
					name := fmt.Sprintf("f%02d_%d", c, f) + strings.Repeat("_", 57)
					column.Fields = append(column.Fields, indexdef.Field{Name: name, Type: indexdef.String})
					body[name] = long
				}
				columns = append(columns, column)
				text, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				cells = append(cells, cell(row, column.Key, 1<<63-1, cellog.AddedID(c+1), string(text)))
			}
			ix := mustIndex(t, strings.Repeat("w", 55), columns...)
			tables := newTables(t, w)
			if _, err := tables.Ensure(t.Context(), ix); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := apply(tables, ix, cells); err != nil {
					t.Fatal(err)
				}
			}
			a, err := indexer.NewQuerier(tables, []*indexer.Index{ix}).Query(t.Context(), "trips", ix.Name(), url.Values{ix.Fields()[0].Name: {long}})
			if err != nil {
				t.Fatal(err)
			}
			es := a.(*indexer.Answer).Entries
			if len(es) != 1 || es[0].Row != row {
				t.Fatalf("%d entries", len(es))
			}
			for i, v := range es[0].Values {
				if v.Text() != long {
					t.Errorf("field %d has %d bytes", i, len(v.Text()))
				}
			}
		})
	}
}
