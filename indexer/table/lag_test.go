package table

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/schemas/indexdef"
)

// lags notes, when a batch is in the tables, how old its newest cells are.
type lags struct {
	*Tables
	mu   sync.Mutex
	ages []time.Duration
	rows int
}

func (l *lags) Apply(ctx context.Context, b indexer.Batch) error {
	err := l.Tables.Apply(ctx, b)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range b.Parts {
		l.rows += len(p.Rows)
		for _, a := range p.Applied {
			l.ages = append(l.ages, time.Since(a.CreatedAt))
		}
	}
	return nil
}

// From a record's creation to its visibility in three indexes on two servers,
// at a steady rate. The broker is kfake, or Apache Kafka with
// CELLOG_TEST_KAFKA=real.
func BenchmarkLag(b *testing.B) {
	for _, rate := range []int{100, 1000, 2000} {
		b.Run(fmt.Sprintf("cells/s=%d", rate), func(b *testing.B) {
			w := newWorld(b, shards, 2)
			s := newStream(b)
			s.topic("BASE")
			var indexes []*indexer.Index
			for _, field := range []string{"driver", "city", "rider"} {
				indexes = append(indexes, mustIndex(b, "by_"+field, indexdef.Column{Key: "BASE", Fields: []indexdef.Field{
					{Name: field, Type: indexdef.UUID}, {Name: "at", Type: indexdef.DateTime}}}))
			}
			l := &lags{Tables: newTables(b, w)}
			stop := s.run(l, indexes...)
			defer stop()
			put := func() {
				s.put(uuid.New(), "BASE", 1, fmt.Sprintf(`{"driver":"%s","city":"%s","rider":"%s","at":"2019-03-23 20:21:09"}`, uuid.New(), uuid.New(), uuid.New()))
			}
			applied := func(n int) {
				waitFor(b, func() error {
					l.mu.Lock()
					defer l.mu.Unlock()
					if l.rows < 3*n {
						return fmt.Errorf("%d of %d rows", l.rows, 3*n)
					}
					return nil
				})
			}
			put()
			s.flush()
			applied(1)
			l.ages = nil
			const every = 5 * time.Millisecond
			tick := time.NewTicker(every)
			defer tick.Stop()
			sent, begin := 0, time.Now()
			for b.Loop() {
				<-tick.C
				for ; float64(sent) < time.Since(begin).Seconds()*float64(rate); sent++ {
					put()
				}
				s.flush()
			}
			applied(sent + 1)
			stop()
			slices.Sort(l.ages)
			at := func(q float64) float64 {
				return float64(l.ages[int(q*float64(len(l.ages)-1))].Microseconds()) / 1000
			}
			b.ReportMetric(at(0.5), "p50-ms")
			b.ReportMetric(at(0.99), "p99-ms")
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "cells/s")
		})
	}
}
