package ingest

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellog/cellog/schemas/body"
)

// Registerer takes the metrics of a Config.
type Registerer = prometheus.Registerer

type metrics struct {
	puts       *prometheus.CounterVec
	putSeconds prometheus.Histogram
	batchCells prometheus.Histogram
	queueBytes prometheus.Gauge
	active     prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		puts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cellog_ingest_puts_total",
			Help: "Puts by outcome: created, same, conflict, or the code of the error.",
		}, []string{"outcome"}),
		putSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cellog_ingest_put_seconds", Help: "Time of one put from its check to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
		batchCells: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cellog_ingest_batch_cells", Help: "Cells that travelled together in one transaction.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
		}),
		queueBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cellog_ingest_queue_bytes", Help: "Bytes of cells that are queued or being written.",
		}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cellog_ingest_active_shards", Help: "Shards that have cells queued or being written.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.puts, m.putSeconds, m.batchCells, m.queueBytes, m.active)
	}
	return m
}

func (m *metrics) observe(r *Result, took time.Duration) {
	m.puts.WithLabelValues(label(r)).Inc()
	m.putSeconds.Observe(took.Seconds())
}

func label(r *Result) string {
	if r.Err == nil {
		return r.Stored.Outcome.String()
	}
	if c := body.CodeOf(r.Err); c != "" {
		return c
	}
	var c Coder
	if errors.As(r.Err, &c) {
		return c.Code()
	}
	return "error"
}
