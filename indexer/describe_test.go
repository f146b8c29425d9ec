package indexer

import (
	"testing"

	"github.com/cellog/cellog/schemas/indexdef"
)

func TestDescribed(t *testing.T) {
	def := indexdef.Definition{Datastore: "trips", Table: "driver_index", Columns: []indexdef.Column{
		{Key: "BASE", Fields: []indexdef.Field{{Name: "driver", Type: indexdef.UUID}, {Name: "at", Type: indexdef.DateTime}}},
		{Key: "STATUS", Fields: []indexdef.Field{{Name: "fare", Type: indexdef.Decimal}}},
	}}
	want, err := NewIndex(def)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Described(want.Describe())
	if err != nil || got.Describe() != want.Describe() || len(got.Fields()) != 3 || len(got.Columns()) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "trips/x", "trips/x BASE", "trips/x BASE()", "trips/x BASE(a uuid", "trips/x BASE(a what)", "trips BASE(a uuid)", want.Describe() + " BASE(z uuid)"} {
		if ix, err := Described(bad); err == nil {
			t.Errorf("%q describes %v", bad, ix)
		}
	}
}
