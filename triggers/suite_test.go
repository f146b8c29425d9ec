package triggers_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/feed"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
)

// publisher writes messages as cells of a column that has the topic's name.
type publisher struct {
	w   *writer
	row func(*message.Message) uuid.UUID
}

type wrapped struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata"`
	Payload  []byte            `json:"payload"`
}

func (p *publisher) Publish(topic string, ms ...*message.Message) error {
	var cs []cellog.Cell
	for _, m := range ms {
		body, err := json.Marshal(wrapped{m.UUID, m.Metadata, m.Payload})
		if err != nil {
			return err
		}
		cs = append(cs, cellog.Cell{Key: cellog.Key{Row: p.row(m), Column: "BASE"}, Datastore: "suite", Body: body})
	}
	return p.w.write(topic, cs...)
}

func (p *publisher) Close() error { return nil }

// unwrap is the way back from a cell to the publisher's message.
func unwrap(d feed.Delivery) (*message.Message, error) {
	var w wrapped
	if err := json.Unmarshal(d.Body, &w); err != nil {
		return nil, err
	}
	m := message.NewMessage(w.UUID, w.Payload)
	m.Metadata = w.Metadata
	return m, nil
}

// writer writes cells to topics as a tailer would: in order, numbered.
type writer struct {
	t          testing.TB
	cfg        kafka.Config
	adm        *kafka.Admin
	partitions int

	mu   sync.Mutex
	p    *kafka.Producer
	made map[string]bool
	next map[string]cellog.Sequence // by topic, shard and column
}

func newWriter(t testing.TB, cfg place) *writer {
	t.Helper()
	adm, err := kafka.NewAdmin(cfg.kafka)
	if err != nil {
		t.Fatal(err)
	}
	p, err := kafka.OpenProducer(context.Background(), kafka.ProducerConfig{Config: cfg.kafka})
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, cfg: cfg.kafka, adm: adm, partitions: 4, p: p, made: make(map[string]bool), next: make(map[string]cellog.Sequence)}
	t.Cleanup(func() { w.p.Close(); adm.Close() })
	return w
}

// reopen takes a new producer, for a broker that was restarted.
func (w *writer) reopen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p.Close()
	p, err := kafka.OpenProducer(context.Background(), kafka.ProducerConfig{Config: w.cfg})
	if err != nil {
		w.t.Fatal(err)
	}
	w.p = p
}

// count returns the number of cells written to a topic.
func (w *writer) count(topic string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for of, last := range w.next {
		if strings.HasPrefix(of, topic+"/") {
			n += int(last)
		}
	}
	return n
}

func (w *writer) write(topic string, cs ...cellog.Cell) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.made[topic] {
		if _, err := w.adm.EnsureTopic(ctx, kafka.ColumnTopic(topic, w.partitions, 1<<20)); err != nil {
			return err
		}
		w.made[topic] = true
	}
	if err := w.p.Begin(ctx); err != nil {
		return err
	}
	for i := range cs {
		c := &cs[i]
		c.Shard = cellog.ShardOf(c.Row, 4*w.partitions)
		of := topic + "/" + strconv.Itoa(int(c.Shard)) + "/" + c.Column
		w.next[of]++
		c.Sequence, c.AddedID, c.Epoch = w.next[of], cellog.AddedID(w.next[of]), 1
		c.CreatedAt = time.Now().UTC().Truncate(time.Microsecond)
		m := kafka.NewMessage(topic, cellog.PartitionOf(c.Shard, w.partitions), record.Encode(c))
		if err := w.p.Send(ctx, m); err != nil {
			return err
		}
	}
	if err := w.p.Flush(ctx); err != nil {
		return err
	}
	return w.p.Commit(ctx)
}
