package demo

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
)

// ride is what the demo knows of a trip.
type ride struct {
	*Trip
	acked time.Time // when its BASE cell was answered for; zero: not yet
	inLog bool      // its BASE cell is in Kafka
	ended bool      // its last STATUS cell is in Kafka
}

// watch counts what comes out of Kafka, as any consumer would see it.
type watch struct {
	toKafka, toStatus lags

	mu      sync.Mutex
	rides   map[uuid.UUID]*ride
	order   []*ride // acknowledged ones
	records map[string]int
	twice   int // records of a cell that came before
	seen    map[string]bool
	open    int // acknowledged trips without a last STATUS
}

func newWatch() *watch {
	return &watch{rides: make(map[uuid.UUID]*ride), records: make(map[string]int), seen: make(map[string]bool)}
}

// expect is called before a trip's BASE cell is put, ack after it was answered.
func (w *watch) expect(t *Trip) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rides[t.Row] = &ride{Trip: t}
}

func (w *watch) ack(t *Trip) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rides[t.Row]
	r.acked = time.Now()
	w.order = append(w.order, r)
	if r.inLog {
		w.toKafka.add(0) // it was there before the answer
	}
	if r.ended {
		w.toStatus.add(0)
	} else {
		w.open++
	}
}

// follow reads the demo's topics until ctx ends.
func (w *watch) follow(ctx context.Context, cfg Config) error {
	c, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: cfg.Kafka})
	if err != nil {
		return err
	}
	defer c.Close()
	var topics []string
	for _, column := range []string{columnBase, columnStatus, columnNotes, columnAdjustment} {
		topics = append(topics, cellog.TopicName(cfg.Prefix, cfg.Datastore, column))
	}
	return c.Follow(ctx, kafka.FromZero(), topics, func(d kafka.Delivery) error {
		cell, err := record.Decode(d.Record)
		if err == nil {
			w.saw(&cell)
		}
		return err
	})
}

func (w *watch) saw(c *cellog.Cell) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rides[c.Row]
	if r == nil {
		return // of an earlier demo on the same data
	}
	if id := c.ID(); w.seen[id] {
		w.twice++
		return
	} else {
		w.seen[id] = true
	}
	w.records[c.Column]++
	switch c.Column {
	case columnBase:
		r.inLog = true
		if !r.acked.IsZero() {
			w.toKafka.add(now.Sub(r.acked))
		}
	case columnStatus:
		st, err := parseStatus(c.Body)
		if err == nil && (st.Outcome == Charged || c.Ref >= MaxAttempts) && !r.ended {
			r.ended = true
			if !r.acked.IsZero() {
				w.toStatus.add(now.Sub(r.acked))
				w.open--
			}
		}
	}
}

// counts returns the records by column, and the acknowledged trips that have
// no last STATUS yet.
func (w *watch) counts() (records map[string]int, twice, acked, open int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	records = make(map[string]int, len(w.records))
	for k, v := range w.records {
		records[k] = v
	}
	return records, w.twice, len(w.order), w.open
}

// acknowledged returns the trips whose BASE cells were answered for.
func (w *watch) acknowledged() []*Trip {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*Trip, len(w.order))
	for i, r := range w.order {
		out[i] = r.Trip
	}
	return out
}

// acknowledgedAt returns the n-th acknowledged trip and when that was.
func (w *watch) acknowledgedAt(n int) (*Trip, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.order[n].Trip, w.order[n].acked
}
