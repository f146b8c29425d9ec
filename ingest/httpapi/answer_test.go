package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

func TestPlaceIsWrittenAsEncodingJSONDoes(t *testing.T) {
	for _, at := range []time.Time{{}, time.Date(2019, 3, 1, 0, 31, 7, 120000000, time.UTC), time.Date(2026, 12, 1, 5, 0, 0, 0, time.FixedZone("", 3600))} {
		for _, o := range []cellog.Outcome{cellog.Created, cellog.Same, cellog.Conflict} {
			p := placeOf("trips", cellog.Key{Row: uuid.New(), Column: "BASE", Ref: -1 << 63}, cellog.Stored{Outcome: o, Shard: 4095, AddedID: 1<<63 - 1, Epoch: 7, CreatedAt: at})
			want, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(p.appendJSON(nil)); got != string(want) {
				t.Errorf("%s, want %s", got, want)
			}
		}
	}
}
