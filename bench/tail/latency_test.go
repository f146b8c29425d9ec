package tail

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
	"github.com/cellog/cellog/schemas/record"
)

// BenchmarkLatency measures from the return of a cell's commit in MySQL to its
// sight by a plain reader of committed records, at full durability, and where
// the time goes: until the tailer encodes the cell, until the transaction may
// begin, to the acknowledgement of the cells, to the end of the transaction, and
// from there to the reader.
func BenchmarkLatency(b *testing.B) {
	rates := []int{50, 500, 2000}
	if s := os.Getenv("CELLOG_BENCH_RATES"); s != "" {
		rates = nil
		for f := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(f)
			if err != nil || n < 1 {
				b.Fatalf("CELLOG_BENCH_RATES=%s: want cells a second, such as 50,500", s)
			}
			rates = append(rates, n)
		}
	}
	for _, rate := range rates {
		b.Run(fmt.Sprintf("%d-per-second", rate), func(b *testing.B) { latency(b, rate, 10*time.Second) })
	}
}

// The first cells come at warmRate, for warmUp, and are not counted: a JVM that
// has just started is several times slower.
const (
	warmUp   = 5 * time.Second
	warmRate = 2000
)

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
	st := &stages{Publisher: pub, encoded: make(map[string]time.Time)}
	tl, err := cdc.New(cdc.Config{Cluster: "c1", Publisher: st, Nodes: func(context.Context) ([]cdc.Node, error) {
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
	first := int(warmUp.Seconds()) * warmRate
	n := first + int(length.Seconds())*rate
	var sent atomic.Int64
	admin := node.DB(b, "")
	b.ResetTimer()
	for w := range shards {
		go func() {
			name := cellog.DatabaseName(datastore, cellog.ShardID(w))
			tick := time.NewTicker(time.Second * shards / warmRate)
			defer tick.Stop()
			warm := true
			for i := 1; ; i++ {
				k := sent.Add(1)
				if k > int64(n) {
					return
				}
				if warm && k > int64(first) {
					warm = false
					time.Sleep(time.Second * time.Duration(w) / time.Duration(rate)) // not all at once
					tick.Reset(time.Second * shards / time.Duration(rate))
				}
				cold := warm
				row := make([]byte, 16)
				row[0], row[1], row[2] = byte(w), byte(i), byte(i>>8)
				if _, err := admin.Exec("INSERT INTO "+name+".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) VALUES (?,1,?,'BASE',1,?,UTC_TIMESTAMP(6))", i, row, stored); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				mu.Lock()
				if id := fmt.Sprintf("%s/%d/%d", datastore, w, i); !cold {
					put[id] = now
				}
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
	metric := func(name string, took []time.Duration) {
		slices.Sort(took)
		ms := func(p float64) float64 { return float64(took[int(float64(len(took)-1)*p)].Microseconds()) / 1000 }
		b.ReportMetric(ms(0.5), name+"p50-ms")
		b.ReportMetric(ms(0.99), name+"p99-ms")
	}
	var took, read, wait, flush, commit, sight []time.Duration
	for id, at := range seen {
		if _, ok := put[id]; !ok {
			continue
		}
		took = append(took, max(0, at.Sub(put[id]))) // seen before the answer came: no wait at all
		read = append(read, st.encoded[id].Sub(put[id]))
		if t := st.of(st.encoded[id]); t != nil {
			wait, flush, commit = append(wait, t.began.Sub(st.encoded[id])), append(flush, t.flushed.Sub(t.began)), append(commit, t.ended.Sub(t.flushed))
			sight = append(sight, at.Sub(t.ended))
		}
	}
	metric("", took)
	metric("1-read-", read)
	metric("2-wait-", wait)
	metric("3-flush-", flush)
	metric("4-commit-", commit)
	metric("5-sight-", sight)
	b.ReportMetric(float64(n)/float64(len(st.transactions)), "cells/transaction")
}

// stages notes when a transaction of the tailer comes how far.
type stages struct {
	cdc.Publisher

	mu           sync.Mutex
	encoded      map[string]time.Time // by ce_id
	transactions []transaction
}

// transaction is one with cells: began is when the last of them was sent.
type transaction struct{ began, flushed, ended time.Time }

// of is the transaction that took a cell: the first that was still gathering.
func (s *stages) of(encoded time.Time) *transaction {
	i, _ := slices.BinarySearchFunc(s.transactions, encoded, func(t transaction, at time.Time) int { return t.began.Compare(at) })
	if i == len(s.transactions) {
		return nil
	}
	return &s.transactions[i]
}

func (s *stages) Open(ctx context.Context) (cdc.Session, cdc.Positions, error) {
	sess, pos, err := s.Publisher.Open(ctx)
	return &staged{Session: sess, s: s}, pos, err
}

type staged struct {
	cdc.Session
	s  *stages
	tx transaction
}

func (s *staged) Encode(ds *cdc.Datastore, c *cellog.Cell, form record.Form) (column, merged cdc.Message) {
	s.s.mu.Lock()
	s.s.encoded[fmt.Sprintf("%s/%d/%d", ds.Name, c.Shard, c.AddedID)] = time.Now()
	s.s.mu.Unlock()
	return s.Session.Encode(ds, c, form)
}

func (s *staged) Send(ctx context.Context, m cdc.Message) error {
	err := s.Session.Send(ctx, m)
	s.tx.began = time.Now()
	return err
}

func (s *staged) Flush(ctx context.Context) error {
	err := s.Session.Flush(ctx)
	s.tx.flushed = time.Now()
	return err
}

func (s *staged) Commit(ctx context.Context, c cdc.Commit) error {
	err := s.Session.Commit(ctx, c)
	s.tx.ended = time.Now()
	if len(c.Shards) > 0 {
		s.s.mu.Lock()
		s.s.transactions = append(s.s.transactions, s.tx)
		s.s.mu.Unlock()
	}
	s.tx = transaction{}
	return err
}
