package triggers_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/cellog/cellog"
)

// BenchmarkBacklog reads a backlog with a function that does nothing: what the
// feed, the subscriber and watermill's router cost.
func BenchmarkBacklog(b *testing.B) {
	cfg := broker(b)
	w := newWriter(b, cfg)
	const rows, chunk = 5000, 5000
	for i := 0; i < b.N; i += chunk {
		if err := w.write(cfg.base, cellsOf(rows, i, min(i+chunk, b.N))...); err != nil {
			b.Fatal(err)
		}
	}
	var n atomic.Int64
	done := make(chan struct{})
	b.ResetTimer()
	_, stop := start(b, cfg, func(context.Context, cellog.Cell) error {
		if n.Add(1) == int64(b.N) {
			close(done)
		}
		return nil
	})
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cells/s")
	stop()
}
