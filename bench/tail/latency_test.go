package tail

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
)

// BenchmarkLatency measures from the return of a cell's commit in MySQL to its
// sight by a plain reader of committed records, at full durability.
func BenchmarkLatency(b *testing.B) {
	for _, rate := range []int{50, 500, 2000} {
		b.Run(fmt.Sprintf("%d-per-second", rate), func(b *testing.B) { latency(b, rate, 5*time.Second) })
	}
}

func latency(b *testing.B, rate int, length time.Duration) {
	node := mysqltest.Start(b) // a binlog without the rows of earlier runs
	node.CreateShards(b, datastore, shards)
	a := mysqltest.Accounts.Tailer
	src, err := binlog.New(binlog.Config{Addr: node.Addr(), User: a.User, Password: a.Password})
	if err != nil {
		b.Fatal(err)
	}
	addrs, prefix := kafkatest.Start(b).Addrs(), kafkatest.Prefix(b)
	pub, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: addrs}, Cluster: "c1", Prefix: prefix})
	if err != nil {
		b.Fatal(err)
	}
	defer pub.Close()
	if _, err := pub.WriteFirstOpen(b.Context(), "n1", "u1"); err != nil {
		b.Fatal(err)
	}
	adm, err := kafka.NewAdmin(kafka.Config{Addrs: addrs})
	if err != nil {
		b.Fatal(err)
	}
	defer adm.Close()
	topic := cellog.TopicName(prefix, datastore, "BASE")
	if _, err := adm.EnsureTopic(b.Context(), kafka.ColumnTopic(topic, shards, 8<<20)); err != nil {
		b.Fatal(err)
	}
	db := node.As(b, a, "")
	tl, err := cdc.New(cdc.Config{Cluster: "c1", Publisher: pub, Nodes: func(context.Context) ([]cdc.Node, error) {
		return []cdc.Node{{Name: "n1", Master: true, Source: src, Entities: entities{db: db, shards: shards}}}, nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	if err := tl.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer tl.Stop(context.Background())
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()

	stored, err := body.Encode(nil, []byte(`{"a":1}`), body.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	put, seen := make(map[string]time.Time), make(map[string]time.Time)
	n := int(length.Seconds()) * rate
	var sent atomic.Int64
	admin := node.DB(b, "")
	b.ResetTimer()
	for w := range shards {
		go func() {
			name := cellog.DatabaseName(datastore, cellog.ShardID(w))
			tick := time.NewTicker(time.Second * shards / time.Duration(rate))
			defer tick.Stop()
			for i := 1; sent.Add(1) <= int64(n); i++ {
				row := make([]byte, 16)
				row[0], row[1], row[2] = byte(w), byte(i), byte(i>>8)
				if _, err := admin.Exec("INSERT INTO "+name+".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) VALUES (?,1,?,'BASE',1,?,UTC_TIMESTAMP(6))", i, row, stored); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				mu.Lock()
				put[fmt.Sprintf("%s/%d/%d", datastore, w, i)] = now
				mu.Unlock()
				<-tick.C
			}
		}()
	}
	for len(seen) < n {
		fetches := cl.PollFetches(b.Context())
		now := time.Now()
		fetches.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == "ce_id" {
					seen[string(h.Value)] = now
				}
			}
		})
	}
	b.StopTimer()
	mu.Lock()
	defer mu.Unlock()
	var took []time.Duration
	for id, at := range seen {
		took = append(took, max(0, at.Sub(put[id]))) // seen before the answer came: no wait at all
	}
	slices.Sort(took)
	ms := func(p float64) float64 { return float64(took[int(float64(len(took)-1)*p)].Microseconds()) / 1000 }
	b.ReportMetric(ms(0.5), "p50-ms")
	b.ReportMetric(ms(0.99), "p99-ms")
	b.ReportMetric(ms(1), "max-ms")
}
