package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, kafkatest.LeftBehind) }

const shards = 8

// bundle is a datastore of 8 shards in 4 partitions, so that shards share
// partitions, with two columns; its tables are in memory, its topics on a fake
// broker.
type bundle struct {
	kafka   kafka.Config
	tables  [shards][]cellog.Cell // bodies as JSON
	records []cellog.Cell         // in the order in which they are published
	last    map[cellog.ShardID]cellog.AddedID
	merged  []cellog.Cell      // records of the merged topic; nil: there is none
	raw     []record.Record    // published last, into partition 0 of BASE
	damaged map[uuid.UUID]bool // cells that cannot be read
	// growing: last is what shard_log said at first.
	growing bool
	mu      sync.Mutex
	asked   map[cellog.ShardID]bool
}

func (b *bundle) Last(_ context.Context, _ string, s cellog.ShardID) (cellog.AddedID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, ok := b.last[s]
	if ok && b.growing {
		if b.asked == nil {
			b.asked = map[cellog.ShardID]bool{}
		}
		ok, b.asked[s] = !b.asked[s], true
	}
	if ok {
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
			if b.damaged[c.Row] {
				out = append(out, cellog.Cell{Datastore: c.Datastore, Shard: c.Shard, AddedID: c.AddedID})
				continue
			}
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

func setup(t *testing.T, merged ...string) *bundle {
	t.Helper()
	topics := append([]string{"trips.BASE", "trips.STATUS"}, merged...)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, topics...), kfake.SeedTopics(1, "_cellog.positions.c0"))
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
	if merged != nil {
		b.merged = slices.Clone(b.records)
	}
	return b
}

// publish sends the records, in a few transactions of which one is aborted.
func (b *bundle) publish(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	send := func(cells, merged []cellog.Cell, raw []record.Record, commit bool) {
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
		for i := range merged {
			c := &merged[i]
			m := kafka.NewMessage(cellog.MergedTopicName("", "trips"), cellog.PartitionOf(c.Shard, 4), record.Encode(c))
			if err := p.Send(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range raw {
			if err := p.Send(ctx, kafka.NewMessage("trips.BASE", 0, r)); err != nil {
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
	send(b.records[:len(b.records)/2], b.merged[:len(b.merged)/2], nil, true)
	send(b.records[:5], nil, nil, false)
	send(b.records[len(b.records)/2:], b.merged[len(b.merged)/2:], b.raw, true)
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
			// The record is there without its cell. Every later one of its
			// column has a number too high, which is the same fault.
			Report{Cells: 399, Records: 400, Missing: 1, Holes: 1}, "hole: "},
		{"two holes in the log", func(b *bundle) {
			b.tables[3] = slices.Delete(b.tables[3], 4, 5)
			b.tables[3] = slices.Delete(b.tables[3], 4, 5)
			b.tables[3] = slices.Delete(b.tables[3], 9, 10)
		}, Report{Cells: 397, Records: 400, Missing: 3, Holes: 3}, "hole: "},
		{"the log's last cell is gone", func(b *bundle) {
			n := len(b.tables[3])
			b.last = map[cellog.ShardID]cellog.AddedID{3: cellog.AddedID(n)}
			b.tables[3] = b.tables[3][:n-1]
		}, Report{Cells: 399, Records: 400, Missing: 1, Holes: 1}, "hole: "},
		{"cells above shard_log's number", func(b *bundle) {
			c := b.tables[3][0]
			for i := range cellog.AddedID(9) {
				c.AddedID = cellog.AddedID(len(b.tables[3])) + 1 + 2*i
				b.tables[3] = append(b.tables[3], c)
			}
			b.last = map[cellog.ShardID]cellog.AddedID{3: cellog.AddedID(len(b.tables[3]) - 9)}
		}, Report{Cells: 400, Records: 400, Holes: 9}, "beyond: "},
		{"cell moved to another column", func(b *bundle) {
			i := slices.IndexFunc(b.tables[3], func(c cellog.Cell) bool { return c.Column == "BASE" })
			b.tables[3][i].Column = "STATUS"
		}, Report{Cells: 400, Records: 400, Missing: 2}, "has no cell"},
		{"sequence shifted from a record on", func(b *bundle) {
			for i := 70; i < 400; i++ {
				if b.records[i].Shard == b.records[70].Shard && b.records[i].Column == b.records[70].Column {
					b.records[i].Sequence += 3
				}
			}
		}, Report{Cells: 400, Records: 400, Holes: 1}, "sequence: "},
		{"damaged cell", func(b *bundle) { b.damaged = map[uuid.UUID]bool{b.records[70].Row: true} },
			Report{Cells: 400, Records: 400, BodyMismatch: 1}, "damaged: "},
		{"damaged cell, its record doubled", func(b *bundle) {
			b.damaged = map[uuid.UUID]bool{b.records[70].Row: true}
			b.records = slices.Insert(b.records, 71, b.records[70])
		}, Report{Cells: 400, Records: 401, BodyMismatch: 1, Duplicates: 1}, "duplicate: "},
		{"record of a cell that no log has yet", func(b *bundle) {
			c := b.records[70]
			c.AddedID = 1e9
			b.records = append(b.records, c)
		}, Report{Cells: 400, Records: 401, Missing: 1}, "the shard's log ends at"},
		{"record of no cell in between", func(b *bundle) {
			c := b.records[70]
			b.tables[c.Shard] = slices.DeleteFunc(b.tables[c.Shard], func(o cellog.Cell) bool { return o.AddedID == c.AddedID })
			b.records = slices.Insert(b.records, b.other(70), c)
		}, Report{Cells: 399, Records: 401, Missing: 2, Holes: 1}, "has no cell"},
		{"record that is no cell's", func(b *bundle) {
			b.raw = []record.Record{{Key: []byte("x"), Value: []byte("y"), Time: time.Now()}}
		}, Report{Cells: 400, Records: 401, BodyMismatch: 1}, "foreign: "},
		{"tombstone", func(b *bundle) { b.raw = []record.Record{{Key: []byte(uuid.Nil.String()), Time: time.Now()}} },
			Report{Cells: 400, Records: 401, BodyMismatch: 1}, "foreign: "},
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
			if diff := cmp.Diff(c.want, got); diff != "" || got.Clean() || !strings.Contains(strings.Join(details, "\n"), c.detail) {
				t.Errorf("(-want +got)\n%s%s", diff, strings.Join(details, "\n"))
			}
		})
	}
}

// The merged topic is compared like a column's, and its faults are counted
// apart from those of the column topics.
func TestMergedTopic(t *testing.T) {
	const all = "trips._all"
	for _, c := range []struct {
		name   string
		plant  func(b *bundle)
		want   Merged
		detail string
	}{
		{"clean", func(*bundle) {}, Merged{Records: 400}, ""},
		{"missing record", func(b *bundle) { b.merged = slices.Delete(b.merged, 100, 101) }, Merged{Records: 399, Missing: 1}, "is not in _all"},
		{"switched on late", func(b *bundle) { b.merged = b.merged[150:] }, Merged{Records: 250, Missing: 150}, "is not in _all"},
		{"duplicate", func(b *bundle) { b.merged = slices.Insert(b.merged, 300, b.merged[10]) }, Merged{Records: 401, Duplicates: 1}, "duplicate: "},
		{"swapped order, of two columns", func(b *bundle) {
			for i := range b.merged {
				j := slices.IndexFunc(b.merged[i+1:], func(c cellog.Cell) bool { return c.Shard == b.merged[i].Shard }) + i + 1
				if b.merged[j].Column != b.merged[i].Column {
					b.merged[i], b.merged[j] = b.merged[j], b.merged[i]
					return
				}
			}
		}, Merged{Records: 400, OutOfOrder: 1}, "out of order: "},
		{"changed body", func(b *bundle) { b.merged[70].Body = []byte(`{"n":70,"fare":12.51}`) }, Merged{Records: 400, BodyMismatch: 1}, "in _all has another body"},
		{"wrong sequence", func(b *bundle) { b.merged[70].Sequence++ }, Merged{Records: 400, Holes: 1}, "sequence: "},
		{"record of no cell", func(b *bundle) {
			c := b.merged[0]
			c.AddedID = 1e9
			b.merged = append(b.merged, c)
		}, Merged{Records: 401, Missing: 1}, "has no cell"},
		{"foreign record", func(b *bundle) {
			c := b.merged[0]
			c.Datastore = "other"
			b.merged = append(b.merged, c)
		}, Merged{Records: 401, BodyMismatch: 1}, "foreign: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t, all)
			c.plant(b)
			b.publish(t)
			got, details := b.run(t)
			c.want.Topic = all
			want := Report{Shards: shards, Cells: 400, Records: 400, Indexes: []Index{}, Merged: &c.want}
			if diff := cmp.Diff(want, got); diff != "" || got.Clean() != (c.name == "clean") || !strings.Contains(strings.Join(details, "\n"), c.detail) {
				t.Errorf("(-want +got)\n%s%s", diff, strings.Join(details, "\n"))
			}
		})
	}
	t.Run("not there", func(t *testing.T) {
		b := setup(t)
		b.publish(t)
		got, err := Run(t.Context(), Config{Datastore: "trips", Shards: shards, Kafka: b.kafka, Entities: b, Merged: true})
		if err != nil || got.Clean() || got.Merged == nil || got.Merged.Missing != 400 || got.Missing != 0 {
			t.Errorf("%+v %+v %v", got, got.Merged, err)
		}
	})
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
	b.last, b.growing = map[cellog.ShardID]cellog.AddedID{}, true
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
