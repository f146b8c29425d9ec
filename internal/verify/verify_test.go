package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const shards = 8

// bundle is a datastore of 8 shards in 4 partitions, so that shards share
// partitions, with two columns; its tables are in memory, its topics on a fake
// broker.
type bundle struct {
	kafka   kafka.Config
	tables  [shards][]cellog.Cell // bodies as JSON
	records []cellog.Cell         // in the order in which they are published
	last    map[cellog.ShardID]cellog.AddedID
}

func (b *bundle) Last(_ context.Context, _ string, s cellog.ShardID) (cellog.AddedID, error) {
	if n, ok := b.last[s]; ok {
		return n, nil
	}
	if n := len(b.tables[s]); n > 0 {
		return b.tables[s][n-1].AddedID, nil
	}
	return 0, nil
}

func (b *bundle) Read(_ context.Context, _ string, s cellog.ShardID, after, upTo cellog.AddedID, limit int) ([]cellog.Cell, error) {
	var out []cellog.Cell
	for _, c := range b.tables[s] {
		if c.AddedID > after && c.AddedID <= upTo && len(out) < limit {
			stored, err := body.Encode(nil, c.Body, body.Limits{})
			if err != nil {
				return nil, err
			}
			c.Body = stored
			out = append(out, c)
		}
	}
	return out, nil
}

func setup(t *testing.T) *bundle {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "trips.BASE", "trips.STATUS"), kfake.SeedTopics(1, "_cellog.positions.c0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	b := &bundle{kafka: kafka.Config{Addrs: cluster.ListenAddrs()}}
	sequences := map[string]cellog.Sequence{}
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for i := range 400 {
		column := "BASE"
		if i%5 == 3 {
			column = "STATUS"
		}
		c := cellog.Cell{Key: cellog.Key{Row: uuid.NewSHA1(uuid.Nil, []byte{byte(i), byte(i >> 8)}), Column: column, Ref: 1},
			Datastore: "trips", Epoch: 1, CreatedAt: start.Add(time.Duration(i) * 100 * time.Microsecond),
			Body: []byte(fmt.Sprintf(`{"n":%d,"fare":12.50}`, i))}
		c.Shard = cellog.ShardOf(c.Row, shards)
		c.AddedID = cellog.AddedID(len(b.tables[c.Shard]) + 1)
		k := fmt.Sprint(c.Shard, column)
		sequences[k]++
		c.Sequence = sequences[k]
		b.tables[c.Shard] = append(b.tables[c.Shard], c)
		b.records = append(b.records, c)
	}
	return b
}

// publish sends the records, in a few transactions of which one is aborted.
func (b *bundle) publish(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	send := func(cells []cellog.Cell, commit bool) {
		p, err := kafka.OpenProducer(ctx, kafka.ProducerConfig{Config: b.kafka, TransactionalID: "t"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range cells {
			c := &cells[i]
			m := kafka.NewMessage(cellog.TopicName("", "trips", c.Column), cellog.PartitionOf(c.Shard, 4), record.Encode(c))
			if err := p.Send(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		if commit {
			for s, table := range b.tables {
				v := position.Shard{Owner: "c0", Epoch: 1, First: 1, Last: cellog.AddedID(len(table))}
				m := kafka.NewMessage("_cellog.positions.c0", 0, record.Record{Key: []byte(position.ShardKey("trips", cellog.ShardID(s))), Value: position.Marshal(v), Time: time.Now()})
				if err := p.Send(ctx, m); err != nil {
					t.Fatal(err)
				}
			}
		}
		end := p.Abort
		if commit {
			end = func(ctx context.Context) error {
				if err := p.Flush(ctx); err != nil {
					return err
				}
				return p.Commit(ctx)
			}
		}
		if err := end(ctx); err != nil {
			t.Fatal(err)
		}
	}
	send(b.records[:len(b.records)/2], true)
	send(b.records[:5], false)
	send(b.records[len(b.records)/2:], true)
}

func (b *bundle) run(t *testing.T) (Report, []string) {
	t.Helper()
	var details []string
	r, err := Run(t.Context(), Config{Datastore: "trips", Shards: shards, Kafka: b.kafka, Entities: b, Wait: 300 * time.Millisecond, Page: 7,
		Detail: func(s string) { details = append(details, s) }})
	if err != nil {
		t.Fatal(err)
	}
	return r, details
}

func TestClean(t *testing.T) {
	b := setup(t)
	b.publish(t)
	r, details := b.run(t)
	if diff := cmp.Diff(Report{Shards: shards, Cells: 400, Records: 400, Indexes: []Index{}}, r); diff != "" || !r.Clean() {
		t.Errorf("(-want +got)\n%s%s", diff, strings.Join(details, "\n"))
	}
	text, err := json.Marshal(r)
	want := `{"shards":8,"cells":400,"records":400,"missing":0,"duplicates":0,"out_of_order":0,"holes":0,"body_mismatch":0,"indexes":[]}`
	if err != nil || string(text) != want {
		t.Errorf("%s\nwant %s", text, want)
	}
}

// other returns the index of the next record behind i of the same shard and
// column.
func (b *bundle) other(i int) int {
	for j := i + 1; ; j++ {
		if b.records[j].Shard == b.records[i].Shard && b.records[j].Column == b.records[i].Column {
			return j
		}
	}
}

// Each planted fault is found, and counted under its own name only.
func TestPlantedFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		plant  func(b *bundle)
		want   Report
		detail string
	}{
		{"missing record", func(b *bundle) { b.records = slices.Delete(b.records, 100, 101) },
			Report{Cells: 400, Records: 399, Missing: 1}, "missing: "},
		{"missing last record", func(b *bundle) { b.records = b.records[:399] },
			Report{Cells: 400, Records: 399, Missing: 1}, "missing: "},
		{"duplicate", func(b *bundle) { b.records = slices.Insert(b.records, 300, b.records[10]) },
			Report{Cells: 400, Records: 401, Duplicates: 1}, "duplicate: "},
		{"duplicate at the end", func(b *bundle) { b.records = append(b.records, b.records[399]) },
			Report{Cells: 400, Records: 401, Duplicates: 1}, "duplicate: "},
		{"duplicate at once", func(b *bundle) { b.records = slices.Insert(b.records, 11, b.records[10]) },
			Report{Cells: 400, Records: 401, Duplicates: 1}, "duplicate: "},
		{"swapped order", func(b *bundle) {
			j := b.other(50)
			b.records[50], b.records[j] = b.records[j], b.records[50]
		}, Report{Cells: 400, Records: 400, OutOfOrder: 1}, "out of order: "},
		{"first record last", func(b *bundle) { b.records = append(b.records[1:], b.records[0]) },
			Report{Cells: 400, Records: 400, OutOfOrder: 1}, "out of order: "},
		{"changed body", func(b *bundle) { b.records[70].Body = []byte(`{"n":70,"fare":12.51}`) },
			Report{Cells: 400, Records: 400, BodyMismatch: 1}, "another body"},
		{"changed key", func(b *bundle) { b.records[70].Ref = 2 },
			Report{Cells: 400, Records: 400, BodyMismatch: 1}, "another key"},
		{"changed epoch", func(b *bundle) { b.records[70].Epoch = 2 },
			Report{Cells: 400, Records: 400, BodyMismatch: 1}, "another epoch"},
		{"wrong sequence", func(b *bundle) { b.records[70].Sequence++ },
			Report{Cells: 400, Records: 400, Holes: 1}, "sequence: "},
		{"hole in the log", func(b *bundle) { b.tables[3] = slices.Delete(b.tables[3], 4, 5) },
			// The record is there without its cell, and every later one of
			// its column has a number too high.
			Report{Cells: 399, Records: 400, Missing: 1, Holes: -1}, "hole: "},
		{"log shorter than shard_log", func(b *bundle) { b.last = map[cellog.ShardID]cellog.AddedID{2: cellog.AddedID(len(b.tables[2]) + 3)} },
			Report{Cells: 400, Records: 400, Holes: 3}, "hole: "},
		{"foreign record", func(b *bundle) {
			c := b.records[0]
			c.Datastore = "other"
			b.records = append(b.records, c)
		}, Report{Cells: 400, Records: 401, BodyMismatch: 1}, "foreign: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			c.plant(b)
			b.publish(t)
			got, details := b.run(t)
			c.want.Shards, c.want.Indexes = shards, []Index{}
			if c.want.Holes < 0 && got.Holes > 0 {
				c.want.Holes = got.Holes
			}
			if diff := cmp.Diff(c.want, got); diff != "" || got.Clean() || !strings.Contains(strings.Join(details, "\n"), c.detail) {
				t.Errorf("(-want +got)\n%s%s", diff, strings.Join(details, "\n"))
			}
		})
	}
}

// An equal value in another spelling is no mismatch: a promotion may have
// stored it anew.
func TestEqualSpelling(t *testing.T) {
	b := setup(t)
	b.records[70].Body = []byte(`{"fare":1.25e1,"n":70.0}`)
	b.publish(t)
	if r, details := b.run(t); !r.Clean() {
		t.Error(details)
	}
}

// Cells behind the captured positions, in Kafka or not, do not count.
func TestWhileWritesGoOn(t *testing.T) {
	b := setup(t)
	b.publish(t)
	b.last = map[cellog.ShardID]cellog.AddedID{}
	cells := 0
	for s := range b.tables {
		n := len(b.tables[s]) - s%3
		b.last[cellog.ShardID(s)] = cellog.AddedID(n)
		cells += n
	}
	r, details := b.run(t)
	if !r.Clean() || r.Cells != int64(cells) || r.Records != r.Cells {
		t.Errorf("%+v %v", r, details)
	}
}

func TestIndexDifferences(t *testing.T) {
	for _, i := range []Index{{Missing: 1}, {Stale: 1}, {Extra: 1}} {
		if r := (Report{Indexes: []Index{{}, i}}); r.Clean() {
			t.Errorf("%+v is clean", i)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []Config{{}, {Datastore: "trips"}, {Datastore: "trips", Shards: 8}, {Datastore: "trips", Shards: 8, Entities: &bundle{}}} {
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%+v accepted", c)
		}
	}
}
