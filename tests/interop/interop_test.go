//go:build interop

package interop

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
)

const (
	datastore  = "trips"
	shards     = 32
	partitions = 16
)

// cells returns n cells with rows of their own. Rows are made of their number,
// so that every run has the same.
func cells(kind string, n int, sequences map[cellog.ShardID]int64) []cellog.Cell {
	all := make([]cellog.Cell, n)
	for i := range all {
		row := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%s %d", kind, i))
		shard := cellog.ShardOf(row, shards)
		sequences[shard]++
		c := cellog.Cell{
			Key:       cellog.Key{Row: row, Column: "BASE", Ref: cellog.RefKey(i - n/2)},
			Datastore: datastore, Shard: shard, Epoch: 3,
			AddedID: cellog.AddedID(sequences[shard]), Sequence: cellog.Sequence(sequences[shard]),
			CreatedAt: time.UnixMicro(1_790_000_000_123_456 + int64(i)*1_000).UTC(),
			Body:      fmt.Appendf(nil, `{"kind":%q,"n":%d,"é\u0000":[1e400,-0,1.50,"\"😀"]}`, kind, i),
		}
		if i%2 == 0 {
			c.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		}
		all[i] = c
	}
	return all
}

// publish writes cells in one transaction, and commits or aborts it.
func publish(t *testing.T, cfg kafka.Config, topic string, all []cellog.Cell, commit bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p, err := kafka.OpenProducer(ctx, kafka.ProducerConfig{Config: cfg, TransactionalID: topic + "-producer"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		c := &all[i]
		if err := p.Send(ctx, kafka.NewMessage(topic, cellog.PartitionOf(c.Shard, partitions), record.Encode(c))); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	end := p.Abort
	if commit {
		end = p.Commit
	}
	if err := end(ctx); err != nil {
		t.Fatal(err)
	}
}

// newTopic makes a topic as the tailer makes it.
func newTopic(t *testing.T, cfg kafka.Config, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin, err := kafka.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.EnsureTopic(ctx, kafka.ColumnTopic(name, partitions, 8<<20)); err != nil {
		t.Fatal(err)
	}
}

// asSeen is what a client must see of a cell.
func asSeen(c cellog.Cell) seen {
	headers := [][2]string{
		{"content-type", "application/json"}, {"ce_specversion", "1.0"}, {"ce_id", c.ID()}, {"ce_source", "/cellog/" + c.Datastore},
		{"ce_type", "cellog.cell.v1"}, {"ce_subject", c.Key.String()}, {"ce_time", c.CreatedAt.Format("2006-01-02T15:04:05.000000Z")},
		{"ce_sequence", fmt.Sprint(c.Sequence)}, {"ce_epoch", fmt.Sprint(c.Epoch)},
	}
	if c.TraceParent != "" {
		headers = append(headers, [2]string{"traceparent", c.TraceParent})
	}
	return seen{
		Partition: cellog.PartitionOf(c.Shard, partitions), Time: c.CreatedAt.UnixMilli(),
		Key: c.Row.String(), Value: string(c.Body), Headers: headers,
	}
}

func inOrder(all []seen) []seen {
	slices.SortStableFunc(all, func(a, b seen) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	for i := range all {
		all[i].Offset = 0
	}
	return all
}

// Every client that reads committed records sees each committed cell once, in
// order, and nothing of the aborted ones; reading uncommitted records shows
// that those are there.
func TestClientsReadCommittedCells(t *testing.T) {
	logVersions(t)
	cfg := kafka.Config{Addrs: kafkatest.Start(t).Addrs()}
	topic := cellog.TopicName(kafkatest.Prefix(t), datastore, "BASE")
	newTopic(t, cfg, topic)
	sequences := map[cellog.ShardID]int64{}
	first := cells("first", 200, sequences)
	publish(t, cfg, topic, first, true)
	aborted := cells("aborted", 50, map[cellog.ShardID]int64{})
	publish(t, cfg, topic, aborted, false)
	second := cells("second", 200, sequences)
	publish(t, cfg, topic, second, true)
	publish(t, cfg, topic, cells("aborted at the end", 50, map[cellog.ShardID]int64{}), false)

	var want []seen
	for _, c := range append(first, second...) {
		want = append(want, asSeen(c))
	}
	want = inOrder(want)
	brokers := strings.Join(cfg.Addrs, ",")
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			if diff := gocmp.Diff(want, inOrder(c.read(t, brokers, topic, "read_committed"))); diff != "" {
				t.Errorf("read_committed (-want +got):\n%.4000s", diff)
			}
			if got := len(c.read(t, brokers, topic, "read_uncommitted")); got != len(want)+100 {
				t.Errorf("read_uncommitted: %d records, want also the 100 that were aborted", got)
			}
		})
	}

	// What docs/consumers.md says of old clients.
	t.Run("Debian's python3-kafka reads aborted cells", func(t *testing.T) {
		version, err := exec.Command("/usr/bin/python3", "-c", "import kafka; print(kafka.__version__)").Output()
		if v := strings.TrimSpace(string(version)); err != nil || v != "2.0.2" {
			t.Skipf("the docs speak of kafka-python 2.0.2; here is %q, %v", v, err)
		}
		program := here() + "/python/kafka_python_consume.py"
		old := client{name: "python3-kafka", run: func(t *testing.T, brokers, topic, isolation string) *exec.Cmd {
			return exec.Command("/usr/bin/python3", program, brokers, topic, isolation)
		}}
		var lies, marks int
		for _, r := range old.read(t, brokers, topic, "none") {
			switch {
			case strings.Contains(r.Value, `"kind":"aborted`):
				lies++
			case len(r.Headers) == 0:
				marks++
			}
		}
		if lies != 100 || marks == 0 {
			t.Errorf("%d aborted cells and %d transaction marks, want 100 and some: mend docs/consumers.md", lies, marks)
		}
		out, err := exec.Command("/usr/bin/python3", program, brokers, topic, "read_committed").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "isolation_level") {
			t.Errorf("it takes isolation_level now (%v): mend docs/consumers.md\n%.1000s", err, out)
		}
	})
}

// Whoever writes to a topic of as many partitions with the row_key as key, by
// Java's default partitioner or librdkafka's murmur2_random, meets our cells in
// the partition of the same number.
func TestPartitionersAgree(t *testing.T) {
	cfg := kafka.Config{Addrs: kafkatest.Start(t).Addrs()}
	brokers := strings.Join(cfg.Addrs, ",")
	prefix := kafkatest.Prefix(t)
	var keys strings.Builder
	want := map[string]int32{}
	for _, c := range cells("partitions", 300, map[cellog.ShardID]int64{}) {
		key := c.Row.String()
		want[key] = cellog.PartitionOf(cellog.ShardOf(c.Row, 4096), partitions)
		if other := cellog.PartitionOf(c.Shard, partitions); other != want[key] {
			t.Fatalf("%s: partition %d with 4096 shards, %d with %d", key, want[key], other, shards)
		}
		keys.WriteString(key + "\n")
	}
	agree := func(t *testing.T, out []byte) (same int) {
		t.Helper()
		n := 0
		for line := range strings.Lines(string(out)) {
			var key string
			var partition int32
			if _, err := fmt.Sscan(line, &key, &partition); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			n++
			if partition == want[key] {
				same++
			}
		}
		if n != len(want) {
			t.Fatalf("%d of %d keys came back", n, len(want))
		}
		return same
	}
	t.Run("java", func(t *testing.T) {
		newTopic(t, cfg, prefix+"other.java")
		if same := agree(t, output(t, java(t, "Produce", brokers, prefix+"other.java"), []byte(keys.String()))); same != len(want) {
			t.Errorf("%d of %d keys have our partition", same, len(want))
		}
	})
	t.Run("confluent-kafka murmur2_random", func(t *testing.T) {
		newTopic(t, cfg, prefix+"other.confluent")
		cmd := python(t, "confluent_produce.py", brokers, prefix+"other.confluent", "murmur2_random")
		if same := agree(t, output(t, cmd, []byte(keys.String()))); same != len(want) {
			t.Errorf("%d of %d keys have our partition", same, len(want))
		}
	})
	// The trap that the docs warn of.
	t.Run("confluent-kafka by default", func(t *testing.T) {
		newTopic(t, cfg, prefix+"other.default")
		cmd := python(t, "confluent_produce.py", brokers, prefix+"other.default", "consistent_random")
		if same := agree(t, output(t, cmd, []byte(keys.String()))); same == len(want) {
			t.Error("librdkafka's default agrees with us now: mend docs/consumers.md")
		}
	})
	t.Run("kcat murmur2_random", func(t *testing.T) {
		newTopic(t, cfg, prefix+"other.kcat")
		lines := strings.ReplaceAll(keys.String(), "\n", "|{}\n")
		output(t, exec.Command("kcat", "-P", "-b", brokers, "-t", prefix+"other.kcat", "-K", "|", "-X", "partitioner=murmur2_random"), []byte(lines))
		got := output(t, exec.Command("kcat", "-C", "-q", "-e", "-o", "beginning", "-b", brokers, "-t", prefix+"other.kcat", "-f", "%k %p\n"), nil)
		if same := agree(t, got); same != len(want) {
			t.Errorf("%d of %d keys have our partition", same, len(want))
		}
	})
}
