package tail

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/record"
)

// readMerged checks that the merged topic holds each shard's log whole, in its
// order.
func (r *rig) readMerged(t *testing.T) (records int, err error) {
	t.Helper()
	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topic := cellog.MergedTopicName(r.prefix, r.store)
	offsets, err := adm.Offsets(t.Context(), topic)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := make(map[cellog.ShardID]cellog.AddedID)
	for p, o := range offsets {
		err := kafka.ReadRange(t.Context(), r.kafka, topic, p, o.Start, o.End, func(f kafka.Fetched) error {
			c, err := record.Decode(f.Record)
			if err != nil {
				return err
			}
			if c.AddedID != last[c.Shard]+1 {
				return fmt.Errorf("%s after %d", c.ID(), last[c.Shard])
			}
			last[c.Shard]++
			if want := r.sent[cdc.ShardKey{Datastore: r.store, Shard: c.Shard}][c.AddedID-1]; want.Key != c.Key || string(want.Body) != string(c.Body) {
				return fmt.Errorf("%s differs", c.ID())
			}
			records++
			return nil
		})
		if err != nil {
			return records, err
		}
	}
	return records, nil
}

func TestMergedTopicHoldsWholeShards(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	merged := func(c *cdc.Config, _ *binlog.Config) { c.Merged = func(string) bool { return true } }
	tl := r.run(t, merged)
	r.putSome(t, rnd, 200)
	r.waitDrained(t, 2*time.Minute)
	stop(t, tl)
	r.putSome(t, rnd, 100)
	tl = r.run(t, merged)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	if n, err := r.readMerged(t); err != nil || n != 300 {
		t.Fatalf("%d records, %v", n, err)
	}
	// It is lost: the shards stop, and the repair that the error names mends it.
	stop(t, tl)
	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	if err := adm.DeleteTopic(t.Context(), cellog.MergedTopicName(r.prefix, r.store)); err != nil {
		t.Fatal(err)
	}
	tl = r.run(t, merged)
	waitFor(t, 2*time.Minute, func() error {
		s := tl.Status()
		for _, err := range s.Stopped {
			if !errors.Is(err, cdc.ErrTailLost) || !strings.Contains(err.Error(), "tailer repair") {
				t.Fatal(err)
			}
		}
		if len(s.Stopped) != 2 {
			return fmt.Errorf("%d shards stopped", len(s.Stopped))
		}
		return nil
	})
	stop(t, tl)
	pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	for shard := range cellog.ShardID(2) {
		if _, err := pub.Repair(t.Context(), &cdc.Datastore{Name: r.store, Shards: 2, Partitions: 2, Merged: true}, shard, entities{r.db}); err != nil {
			t.Fatal(err)
		}
	}
	r.putSome(t, rnd, 50)
	r.run(t, merged)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	if n, err := r.readMerged(t); err != nil || n != 350 {
		t.Fatalf("%d records, %v", n, err)
	}
}
