package cdc

import (
	"context"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/record"
)

// A row that the binlog shows behind a hole is in entity too when the hole is
// filled from there: it is taken once, and stops nothing.
func TestRowBehindAHoleIsTakenOnce(t *testing.T) {
	s, k := newFakeServer(), ShardKey{"trips", 1}
	s.put(k, "BASE", 3)
	var got []cellog.AddedID
	seq := &sequencer{
		cluster: "c1", entities: s, merged: func(string) bool { return false }, values: func(string) record.Forms { return nil },
		reading: reading{entities: s, wait: time.Second}, progress: func(Fill, bool) {},
		metrics: newMetrics(nil, "c1", func() float64 { return 0 }, func() float64 { return 0 }),
		topic:   func(context.Context, *Datastore, string) error { return nil },
		stop:    func(k ShardKey, err error) { t.Errorf("shard %s stopped: %v", k, err) },
		push: func(_ context.Context, items []item, _ int, _ []Beat, _ string) error {
			for _, it := range items {
				got = append(got, it.row.AddedID)
			}
			return nil
		},
		shards: make(map[ShardKey]*shardState), datastores: make(map[string]*Datastore),
		topics: make(map[topicKey]struct{}), unknown: make(map[string]time.Time),
	}
	tx := *s.binlog[0]
	tx.Changes[0].Rows = tx.Changes[0].Rows[2:] // the third one alone
	if err := seq.handle(t.Context(), &tx); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0] != 1 || got[2] != 3 {
		t.Errorf("taken: %v", got)
	}
}
