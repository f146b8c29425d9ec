package tail

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/feed"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/schemas/record"
)

// Last and Read make entities a verify.Entities.
func (e entities) Last(ctx context.Context, datastore string, shard cellog.ShardID) (last cellog.AddedID, err error) {
	err = e.db.QueryRowContext(ctx, "SELECT last_added_id FROM `"+cellog.DatabaseName(datastore, shard)+"`.shard_log").Scan(&last)
	return last, err
}

func (e entities) Read(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, limit int) ([]cellog.Cell, error) {
	cells, err := e.ReadEntity(ctx, datastore, shard, after, limit)
	for len(cells) > 0 && cells[len(cells)-1].AddedID > upTo {
		cells = cells[:len(cells)-1]
	}
	return cells, err
}

// contentTypes counts the records of a topic by their content-type.
func (r *rig) contentTypes(t *testing.T, topic string) map[string]int {
	t.Helper()
	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	offsets, err := adm.Offsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int)
	for p, o := range offsets {
		if err := kafka.ReadRange(t.Context(), r.kafka, topic, p, o.Start, o.End, func(f kafka.Fetched) error {
			for _, h := range f.Headers {
				if h.Key == record.HeaderContentType {
					out[string(h.Value)]++
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// feedAll reads the columns' topics as triggers and indexers do, until it has
// seen as many cells as there are, and holds each against what was stored.
func (r *rig) feedAll(t *testing.T) {
	t.Helper()
	want := make(map[string]string)
	r.mu.Lock()
	for _, cells := range r.sent {
		for i := range cells {
			want[cells[i].ID()] = string(cells[i].Body)
		}
	}
	r.mu.Unlock()
	var topics []string
	for _, c := range columns {
		topics = append(topics, cellog.TopicName(r.prefix, r.store, c))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	got := make(map[string]string)
	f, err := feed.New(feed.Config{
		Kafka: r.kafka, Group: r.prefix + "values", Topics: topics, From: kafka.FromZero(),
		Handle: func(_ context.Context, d feed.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if got[d.ID()] = string(d.Body); len(got) == len(want) {
				cancel()
			}
			return nil
		},
		OnStop: func(p kafka.Partition, err error) { t.Errorf("%v: %v", p, err); cancel() },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(ctx); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the feed's bodies (-want +got):\n%.2000s", diff)
	}
}

// TestValues changes what the values are in the middle of all topics, has a
// merged topic caught up and lost and repaired, and finds the same cells by
// every way of reading.
func TestValues(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	all := []record.Form{record.JSON, record.MessagePack, record.Stored}
	forms := func(round int) record.Forms {
		return record.Forms{"BASE": all[round%3], "NOTES": all[(round+1)%3], record.OtherColumns: all[(round+2)%3]}
	}
	for round := range 3 {
		tl := r.run(t, func(c *cdc.Config, _ *binlog.Config) {
			c.Values = func(string) record.Forms { return forms(round) }
			c.Merged = func(string) bool { return round > 0 } // the second tailer catches it up
		})
		for _, column := range columns {
			for shard := range cellog.ShardID(2) {
				if err := r.putColumn(t.Context(), shard, column, 20, rnd); err != nil {
					t.Fatal(err)
				}
			}
		}
		r.waitDrained(t, 2*time.Minute)
		stop(t, tl)
	}
	each := map[string]int{"application/json": 40, "application/msgpack": 40, "application/vnd.cellog.body": 40}
	for _, column := range columns {
		if diff := cmp.Diff(each, r.contentTypes(t, cellog.TopicName(r.prefix, r.store, column))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", column, diff)
		}
	}
	check := func(when string) {
		t.Helper()
		r.mustBeClean(t)
		if n, err := r.readMerged(t); err != nil || n != 360 {
			t.Fatalf("%s: merged topic: %d records, %v", when, n, err)
		}
		report, err := verify.Run(t.Context(), verify.Config{
			Datastore: r.store, Shards: 2, Kafka: r.kafka, Prefix: r.prefix, Entities: entities{r.db}, Merged: true,
			Detail: func(s string) { t.Log(s) },
		})
		if err != nil || !report.Clean() || report.Records != 360 || report.Merged.Records != 360 {
			t.Fatalf("%s: verify: %v, %+v, %+v", when, err, report, report.Merged)
		}
	}
	check("published")
	r.feedAll(t)

	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	merged := cellog.MergedTopicName(r.prefix, r.store)
	if err := adm.DeleteTopic(t.Context(), merged); err != nil {
		t.Fatal(err)
	}
	pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	ds := &cdc.Datastore{Name: r.store, Shards: 2, Partitions: 2, Merged: true, Values: forms(0)}
	for shard := range cellog.ShardID(2) {
		if _, err := pub.Repair(t.Context(), ds, shard, entities{r.db}); err != nil {
			t.Fatal(fmt.Errorf("shard %d: %w", shard, err))
		}
	}
	for typ, n := range r.contentTypes(t, merged) {
		if n != 120 {
			t.Errorf("repaired: %d records of %s, want 120", n, typ)
		}
	}
	check("repaired")
}
