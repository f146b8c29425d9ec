package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
)

type bench struct {
	cfg    Config
	adm    *Admin
	topic  string
	id     string
	broker *kafkatest.Broker
}

func newBench(t *testing.T) *bench {
	t.Helper()
	broker, prefix := kafkatest.Start(t), kafkatest.Prefix(t)
	b := &bench{cfg: Config{Addrs: broker.Addrs()}, topic: prefix + "trips.BASE", id: prefix + "id", broker: broker}
	var err error
	if b.adm, err = NewAdmin(b.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.adm.Close)
	made, err := b.adm.EnsureTopic(t.Context(), ColumnTopic(b.topic, 2, 8<<20))
	if err != nil || !made {
		t.Fatal(made, err)
	}
	return b
}

func (b *bench) open(t *testing.T) *Producer {
	t.Helper()
	p, err := OpenProducer(t.Context(), ProducerConfig{Config: b.cfg, TransactionalID: b.id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (b *bench) send(t *testing.T, p *Producer, partition int32, values ...string) []*Message {
	t.Helper()
	if err := p.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out []*Message
	for _, v := range values {
		m := NewMessage(b.topic, partition, record.Record{
			Key: []byte("k"), Value: []byte(v), Time: time.Now(), Headers: []record.Header{{Key: "h", Value: []byte(v)}},
		})
		if err := p.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func (b *bench) read(t *testing.T, partition int32) string {
	t.Helper()
	o, err := b.adm.Offsets(t.Context(), b.topic)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = ReadRange(t.Context(), b.cfg, b.topic, partition, o[partition].Start, o[partition].End, func(f Fetched) error {
		if len(f.Headers) != 1 || string(f.Headers[0].Value) != string(f.Value) {
			t.Errorf("headers %v of %s", f.Headers, f.Value)
		}
		got = append(got, string(f.Value))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(got, " ")
}

func TestCommittedIsReadAbortedIsNot(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	b.send(t, p, 0, "a", "b")
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := b.send(t, p, 0, "c", "d")
	other := b.send(t, p, 1, "e")
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first[0].Offset() != 3 || first[1].Offset() != 4 || other[0].Offset() != 0 { // 2 is the marker
		t.Errorf("offsets %d %d %d", first[0].Offset(), first[1].Offset(), other[0].Offset())
	}
	// Not decided yet: readers of committed records stop before it.
	o, err := b.adm.CommittedOffsets(t.Context(), b.topic)
	if err != nil || o[0] != (Offsets{0, 3}) || o[1] != (Offsets{0, 0}) {
		t.Errorf("committed offsets %v, %v", o, err)
	}
	if err := p.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.read(t, 0); got != "a b" {
		t.Errorf("read %q", got)
	}
	if got := b.read(t, 1); got != "" {
		t.Errorf("read %q", got)
	}
	if err := p.Send(t.Context(), first[0]); err == nil {
		t.Error("an aborted producer takes records")
	}
}

func TestNewerProducerFencesOlder(t *testing.T) {
	b := newBench(t)
	for _, step := range []string{"idle", "begun", "sent", "flushed"} {
		old := b.open(t)
		if step != "idle" {
			if err := old.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if step == "sent" || step == "flushed" {
			b.send(t, old, 0, "old-"+step)
		}
		if step == "flushed" {
			if err := old.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		p := b.open(t)
		b.send(t, p, 0, "new-"+step)
		if err := p.Commit(t.Context()); err != nil {
			t.Fatal(step, err)
		}
		// The old one learns it at the latest when it commits something.
		err := old.Begin(t.Context())
		if err == nil {
			m := NewMessage(b.topic, 0, record.Record{Key: []byte("k"), Value: []byte("late-" + step)})
			if err = old.Send(t.Context(), m); err == nil {
				err = old.Commit(t.Context())
			}
		}
		if !errors.Is(err, ErrFenced) {
			t.Errorf("%s: %v", step, err)
		}
		if err := old.Commit(t.Context()); !errors.Is(err, ErrFenced) {
			t.Errorf("%s, again: %v", step, err)
		}
		old.Close()
		p.Close()
	}
	if got := b.read(t, 0); got != "new-idle new-begun new-sent new-flushed" {
		t.Errorf("read %q", got)
	}
}

func TestRefusedRecordFailsTheTransaction(t *testing.T) {
	b := newBench(t)
	p, err := OpenProducer(t.Context(), ProducerConfig{Config: b.cfg, TransactionalID: b.id, MaxRecordBytes: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = p.Begin(t.Context())
	for _, v := range []string{"a", strings.Repeat("x", 20_000), "b"} {
		if err == nil { // a later Send may know of it already
			err = p.Send(t.Context(), NewMessage(b.topic, 0, record.Record{Key: []byte("k"), Value: []byte(v)}))
		}
	}
	if err == nil {
		err = p.Commit(t.Context())
	}
	var refused *Refused
	if !errors.Is(err, ErrRecordRefused) || !errors.As(err, &refused) || refused.Topic != b.topic {
		t.Errorf("commit: %v", err)
	}
	if err := p.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.read(t, 0); got != "" {
		t.Errorf("read %q", got)
	}
}

func TestUnknownTopicFailsTheTransaction(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	if err := p.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Send(t.Context(), NewMessage(b.topic+"x", 0, record.Record{Key: []byte("k")})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Commit(ctx); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("commit: %v", err)
	}
}

// A transaction that begins while the one before ends would wait for 20 ms.
func TestBeginWaitsForTheMarkers(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	for range 50 {
		b.send(t, p, 0, "a")
		if err := p.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Since(p.lastCommit) > longGap {
			continue // so late that Begin did not ask
		}
		if written, err := p.markersWritten(t.Context()); err != nil || !written {
			t.Fatalf("a transaction began: markers written %v, %v", written, err)
		}
	}
	// Whoever may not ask, and a context that ended.
	p.lastCommit, p.id = time.Now(), ""
	if err := p.awaitMarkers(t.Context()); err != nil || time.Since(p.lastCommit) < commitGap {
		t.Errorf("after %s: %v", time.Since(p.lastCommit), err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.lastCommit = time.Now()
	if err := p.awaitMarkers(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("awaitMarkers: %v, want the context's error", err)
	}
}

// An error of the client's table is no sign that the table holds a partition:
// taken for one, the first transaction of a new topic may be aborted and
// reported as committed.
func TestSettleWaitsForThePartitionNotForAnError(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	missing := Partition{Topic: b.topic + ".missing"}
	if err := p.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := NewMessage(missing.Topic, missing.Partition, record.Record{Key: []byte("k"), Value: []byte("v"), Time: time.Now()})
	if err := p.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(t.Context()); err == nil {
		t.Fatal("a record of a missing topic was acknowledged")
	}
	leader, _, err := p.cl.PartitionLeader(missing.Topic, missing.Partition)
	if leader >= 0 || err == nil {
		t.Fatalf("leader %d, %v: want no leader, and the error of the failed load", leader, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.fresh = []Partition{missing}
	if err := p.settle(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want it to wait until the context ends", err)
	}
}

func TestProducerConfig(t *testing.T) {
	for _, c := range []ProducerConfig{
		{},
		{Config: Config{Addrs: []string{"nowhere"}}},
		{Config: Config{Addrs: []string{"127.0.0.1:1"}}, TransactionTimeout: 11 * time.Second},
	} {
		if _, err := OpenProducer(t.Context(), c); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := OpenProducer(ctx, ProducerConfig{Config: Config{Addrs: []string{"127.0.0.1:1"}}, TransactionalID: "x"}); err == nil {
		t.Error("opened without a broker")
	}
}

func TestEnsureTopic(t *testing.T) {
	b := newBench(t)
	spec := ColumnTopic(b.topic, 2, 8<<20)
	if made, err := b.adm.EnsureTopic(t.Context(), spec); made || err != nil {
		t.Errorf("again: %v %v", made, err)
	}
	for want, change := range map[string]func(*TopicSpec){
		"--delete --topic " + b.topic: func(s *TopicSpec) { s.Partitions = 3 },
		"--add-config retention.ms=5": func(s *TopicSpec) { s.Configs["retention.ms"] = "5" },
		"cleanup.policy=compact":      func(s *TopicSpec) { s.Configs["cleanup.policy"] = "compact" },
	} {
		s := ColumnTopic(b.topic, 2, 8<<20)
		change(&s)
		if _, err := b.adm.EnsureTopic(t.Context(), s); !errors.Is(err, ErrTopicMismatch) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	if _, err := b.adm.Offsets(t.Context(), b.topic+"x"); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("offsets of no topic: %v", err)
	}
	if _, err := b.adm.Partitions(t.Context(), b.topic+"x"); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("partitions of no topic: %v", err)
	}
}

func TestFetchAt(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	for i := range 3 {
		b.send(t, p, 0, fmt.Sprint("a", i), fmt.Sprint("b", i))
		b.send(t, p, 1, fmt.Sprint("c", i))
		if err := p.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// Partition 0: a0 b0 . a1 b1 . a2 b2 .   Partition 1: c0 . c1 . c2 .
	at := func(partition int32, offset int64) Place { return Place{b.topic, partition, offset} }
	want := map[Place]string{at(0, 0): "a0", at(0, 1): "b0", at(0, 7): "b2", at(1, 4): "c2"}
	places := []Place{at(0, 2), at(0, 8), at(0, 9), at(0, 1000), at(1, 5), at(7, 0), {b.topic + "x", 0, 0}}
	for pl := range want {
		places = append(places, pl)
	}
	got, err := FetchAt(t.Context(), b.cfg, places)
	if err != nil {
		t.Fatal(err)
	}
	for pl, v := range want {
		if string(got[pl].Value) != v {
			t.Errorf("%v: %q, want %q", pl, got[pl].Value, v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d records, want %d: %v", len(got), len(want), got)
	}
}

func TestFollowSeesOpenTransactions(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	b.send(t, p, 0, "a")
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := errors.New("seen")
	err := Follow(t.Context(), b.cfg, b.topic, 0, 0, func(f Fetched) error {
		if string(f.Value) == "a" {
			return seen
		}
		return nil
	})
	if !errors.Is(err, seen) {
		t.Error(err)
	}
	// Read to the end waits for the open transaction, and then sees it.
	done := make(chan string)
	go func() { done <- b.read(t, 0) }()
	select {
	case got := <-done:
		t.Errorf("did not wait: %q", got)
	case <-time.After(300 * time.Millisecond):
	}
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != "a" {
		t.Errorf("read %q", got)
	}
}

func TestProducerOutlivesABrokerRestart(t *testing.T) {
	b := newBench(t)
	p := b.open(t)
	b.send(t, p, 0, "a")
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.broker.Restart(t)
	// It may fail, but must not lie.
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	err := p.Begin(ctx)
	if err == nil {
		if err = p.Send(ctx, NewMessage(b.topic, 0, record.Record{Key: []byte("k"), Value: []byte("b"), Headers: []record.Header{{Key: "h", Value: []byte("b")}}})); err == nil {
			err = p.Commit(ctx)
		}
	}
	want := "a b"
	if err != nil {
		t.Logf("after the restart: %v", err)
		p.Close()
		b.open(t) // aborts what is open
		want = "a"
	}
	if got := b.read(t, 0); got != want && err == nil {
		t.Errorf("read %q, want %q", got, want)
	}
}
