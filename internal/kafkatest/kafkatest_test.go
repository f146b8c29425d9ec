package kafkatest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { Main(m) }

func TestRestartKeepsDataAndAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	b := Start(t)
	topic := Prefix(t) + "t"
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"a", "b"} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
		b.Restart(t)
	}
	r, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := ""
	for got != "ab" {
		fs := r.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		fs.EachRecord(func(rec *kgo.Record) { got += string(rec.Value) })
	}
}

// What is excused hides no consumer that nobody closed.
func TestOpenConsumersAreNotExcused(t *testing.T) {
	b := Start(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.ConsumeTopics("none"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := goleak.Find(LeftBehind); err == nil || !strings.Contains(err.Error(), "kgo.(*Client)") {
		t.Errorf("an open consumer shows as: %v", err)
	}
}
