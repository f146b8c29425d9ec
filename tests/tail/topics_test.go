package tail

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/record"
)

// What may happen to a topic, and what then: docs/tailing.md.

// twoColumns makes a rig whose shard 0 has BASE cells and shard 1 STATUS cells,
// all final, and returns the topic of the latter; the tailer is stopped.
func twoColumns(t *testing.T) (*rig, string) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	for i, col := range []string{"BASE", "STATUS"} {
		for range 4 { // transactions, so that there are several ends in the log
			if err := r.putColumn(t.Context(), cellog.ShardID(i), col, 5, rnd); err != nil {
				t.Fatal(err)
			}
		}
	}
	tl := r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	stop(t, tl)
	return r, cellog.TopicName(r.prefix, r.store, "STATUS")
}

// A broker that lost its last segment has a shorter log of the same records.
func TestTopicThatLostItsLastRecordsStopsItsShard(t *testing.T) {
	r, topic := twoColumns(t)
	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	offsets, err := adm.Offsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var kept []*kgo.Record
	err = kafka.ReadRange(t.Context(), r.kafka, topic, 1, offsets[1].Start, offsets[1].End, func(f kafka.Fetched) error {
		out := &kgo.Record{Topic: topic, Partition: 1, Key: f.Key, Value: f.Value, Timestamp: f.Time}
		for _, h := range f.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		kept = append(kept, out)
		return nil
	})
	if err != nil || len(kept) != 20 {
		t.Fatal(len(kept), err)
	}
	if err := adm.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 2*time.Minute, func() error {
		_, err := adm.EnsureTopic(t.Context(), kafka.ColumnTopic(topic, 2, body.MaxBytes))
		return err
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), kept[:17]...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	tl := r.run(t, nil)
	why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
	if !errors.Is(why, cdc.ErrTailLost) || !strings.Contains(why.Error(), "cellog tailer repair") {
		t.Errorf("stopped with: %v", why)
	}
	stop(t, tl)
	pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	done, err := pub.Repair(t.Context(), &cdc.Datastore{Name: r.store, Shards: 2, Partitions: 2}, 1, entities{r.db})
	if err != nil || done[topic] != 3 {
		t.Fatalf("repaired %v, %v", done, err)
	}
	tl = r.run(t, nil)
	if err := r.putColumn(t.Context(), 1, "STATUS", 5, seeded(t)); err != nil {
		t.Fatal(err)
	}
	r.mustFlow(t, tl)
}

// Records that an operator deleted at the front are no longer the tailer's
// business: it goes on behind them.
func TestTopicThatWasEmptiedAtTheFrontGoesOn(t *testing.T) {
	r, topic := twoColumns(t)
	adm := r.kadmin(t)
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adm.DeleteRecords(t.Context(), ends.Offsets()); err != nil {
		t.Fatal(err)
	}
	tl := r.run(t, nil)
	if err := r.putColumn(t.Context(), 1, "STATUS", 7, seeded(t)); err != nil {
		t.Fatal(err)
	}
	r.waitDrained(t, time.Minute)
	if rep := r.read(t); rep.records != 27 || rep.missing != 20 || rep.duplicates+rep.disordered+rep.differ != 0 {
		t.Errorf("%+v, want the 20 that were deleted to be missing", rep)
	}
	if s := tl.Status(); len(s.Stopped) != 0 {
		t.Errorf("stopped: %v", s.Stopped)
	}
}

// With another number of partitions rows would change places.
func TestTopicWithMorePartitionsStopsItsShards(t *testing.T) {
	r, topic := twoColumns(t)
	if _, err := r.kadmin(t).UpdatePartitions(t.Context(), 3, topic); err != nil {
		t.Fatal(err)
	}
	tl := r.run(t, nil)
	rnd := seeded(t)
	if err := errors.Join(r.putColumn(t.Context(), 0, "BASE", 5, rnd), r.putColumn(t.Context(), 1, "STATUS", 5, rnd)); err != nil {
		t.Fatal(err)
	}
	why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
	if !errors.Is(why, kafka.ErrTopicMismatch) {
		t.Errorf("stopped with: %v", why)
	}
	waitFor(t, time.Minute, tl.Ready)
}

// A broker that refuses a record for its time stops that shard alone.
func TestRecordRefusedForItsTime(t *testing.T) {
	if !kafkatest.Real() {
		t.Skip("the embedded broker looks at no time: CELLOG_TEST_KAFKA=real")
	}
	r, topic := twoColumns(t)
	one := "1"
	if _, err := r.kadmin(t).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "message.timestamp.before.max.ms", Value: &one}}, topic); err != nil {
		t.Fatal(err)
	}
	rnd := seeded(t)
	if err := errors.Join(r.putColumn(t.Context(), 1, "STATUS", 5, rnd), r.putColumn(t.Context(), 0, "BASE", 5, rnd)); err != nil {
		t.Fatal(err)
	}
	tl := r.run(t, nil)
	why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
	if !errors.Is(why, cdc.ErrRefused) || !strings.Contains(why.Error(), "added_id 21") {
		t.Errorf("stopped with: %v", why)
	}
	waitFor(t, time.Minute, tl.Ready)
}

// Clusters share partitions: a tailer that is frozen in its transaction holds
// the readers of them back until the broker ends it, and no longer.
func TestFrozenTailerHoldsReadersForAWhileOnly(t *testing.T) {
	a := newRig(t, mysqltest.Server(t), 2)
	b := &rig{
		node: mysqltest.Start(t), broker: a.broker, prefix: a.prefix, kafka: a.kafka,
		cluster: "c2", store: a.store, shards: 2, account: a.account,
	}
	b.db, b.account.Addr = b.node.DB(t, ""), b.node.Addr()
	b.node.CreateShards(t, b.store, 2)
	b.firstOpen(t)
	for _, r := range []*rig{a, b} {
		r.exec(t, "UPDATE cellog_meta.datastores SET partitions = 1 WHERE name = ?", r.store)
	}
	rnd := seeded(t)
	spec := a.spec()
	spec.Point, spec.Nth, spec.Signal = "tailer/flushed", 1, int(syscall.SIGSTOP)
	if err := a.putColumn(t.Context(), 0, "BASE", 5, rnd); err != nil {
		t.Fatal(err)
	}
	frozen := startChild(t, spec)
	if !frozen.wait(time.Minute, "signal") {
		t.Fatal(frozen.output())
	}
	began := time.Now()
	if err := b.putColumn(t.Context(), 1, "BASE", 5, rnd); err != nil {
		t.Fatal(err)
	}
	b.run(t, nil)
	b.waitDrained(t, time.Minute)
	final := time.Since(began)
	adm, err := kafka.NewAdmin(b.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topic := cellog.TopicName(b.prefix, b.store, "BASE")
	offsets, err := adm.Offsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var got []cellog.Cell
	err = kafka.ReadRange(t.Context(), b.kafka, topic, 0, offsets[0].Start, offsets[0].End, func(f kafka.Fetched) error {
		c, err := record.Decode(f.Record)
		got = append(got, c)
		return err
	})
	held := time.Since(began)
	t.Logf("final after %s, readable after %s", final, held)
	if err != nil || len(got) != 5 || got[0].Shard != 1 {
		t.Errorf("%d records, %v", len(got), err)
	}
	const timeout, slack = 10 * time.Second, 20 * time.Second // the broker looks every 10 s
	if held > timeout+slack {
		t.Errorf("readers were held for %s", held)
	}
	frozen.kill()
	c := startChild(t, a.spec())
	a.waitDrained(t, time.Minute)
	c.kill()
}
