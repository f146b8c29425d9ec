package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// Sessions of many clusters have transactions open, past their timeout, when
// their broker is killed: Apache Kafka forgets to end some in their partitions
// (kafka.Admin.EndLeft). What was given up must not come out with the next
// commit. The broker may forget none; then it is killed again.
func TestTransactionsThatABrokerForgotStayAborted(t *testing.T) {
	if !kafkatest.Real() {
		t.Skip("only a real broker forgets: CELLOG_TEST_KAFKA=real")
	}
	broker, prefix := kafkatest.Start(t), kafkatest.Prefix(t)
	const clusters, partitions, rounds = 24, 8, 4
	ds := &cdc.Datastore{Name: "trips", Shards: partitions, Partitions: partitions}
	var log bytes.Buffer
	warned := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})) // it locks
	var pubs []*Publisher
	for i := range clusters {
		p, err := New(Config{Kafka: kafka.Config{Addrs: broker.Addrs()}, Cluster: fmt.Sprint("c", i), Prefix: prefix, TransactionTimeout: time.Second, Logger: warned})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		pubs = append(pubs, p)
	}
	row := newTable(t, "BASE")[0]
	row.Body = []byte(`{"a":1}`)
	kept, next := 0, cellog.AddedID(1)
	// write sends a cell to each partition; those given up have Ref 2.
	write := func(ctx context.Context, s *session, ref cellog.RefKey, id cellog.AddedID) error {
		if err := s.Topic(ctx, ds, "BASE"); err != nil {
			return err
		}
		for shard := range cellog.ShardID(partitions) {
			c := row
			c.Shard, c.AddedID, c.Sequence, c.Ref = shard, id, 1, ref
			m, _ := s.Encode(ds, &c, record.JSON)
			if err := s.Send(ctx, m); err != nil {
				return err
			}
		}
		return s.Flush(ctx)
	}
	// each opens a session per cluster, commits a cell to each partition, and
	// writes what is given up.
	each := func() {
		t.Helper()
		g, ctx := errgroup.WithContext(t.Context())
		sessions := make([]*session, clusters)
		for i, p := range pubs {
			g.Go(func() error {
				for try := 1; ; try++ {
					s, _, err := p.Open(ctx)
					if err != nil {
						return err
					}
					sessions[i] = s.(*session)
					if err = write(ctx, sessions[i], 1, next); err == nil {
						err = s.Commit(ctx, cdc.Commit{Cluster: position.Cluster{Term: 1, State: position.Open, Node: "n1"}})
					}
					if !errors.Is(err, cdc.ErrFenced) || try == 5 {
						return err
					}
					sessions[i].prod.Close() // it took longer than the timeout
				}
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		kept += clusters * partitions
		next++
		g, ctx = errgroup.WithContext(t.Context())
		for _, s := range sessions {
			g.Go(func() error { return write(ctx, s, 2, next) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		broker.Kill(t)
		for _, s := range sessions {
			s.prod.Close()
		}
		broker.Restart(t)
	}
	given := func() (all, n int) {
		t.Helper()
		topic := cellog.TopicName(prefix, "trips", "BASE")
		ends, err := pubs[0].adm.CommittedOffsets(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		for part, o := range ends {
			err := kafka.ReadRange(t.Context(), pubs[0].cfg.Kafka, topic, part, o.Start, o.End, func(f kafka.Fetched) error {
				c, err := record.Decode(f.Record)
				all++
				if c.Ref == 2 {
					n++
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return all, n
	}
	for range rounds {
		each()
	}
	each() // its commits end what was left
	if all, n := given(); n > 0 || all != kept {
		t.Errorf("%d committed cells, want %d; %d of them had been given up", all, kept, n)
	}
	left := bytes.Count(log.Bytes(), []byte("left a transaction open"))
	t.Logf("the broker had left %d transactions open", left)
	if left == 0 {
		t.Skipf("the broker forgot nothing in %d restarts: nothing was proved", rounds)
	}
}
