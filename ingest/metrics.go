package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Registerer takes the metrics of a Config.
type Registerer = prometheus.Registerer

type metrics struct {
	puts       *prometheus.CounterVec
	putSeconds prometheus.Histogram
	batchCells prometheus.Histogram
	queueBytes prometheus.Gauge
	active     prometheus.Gauge
	forwarded  prometheus.Counter
	fallbacks  prometheus.Counter
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
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cellog_ingest_forwarded_total", Help: "Cells that the shard's home worker wrote for this one.",
		}),
		fallbacks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cellog_ingest_fallbacks_total", Help: "Cells of another worker's shard that this one wrote because that one did not.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.puts, m.putSeconds, m.batchCells, m.queueBytes, m.active, m.forwarded, m.fallbacks)
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
	if c := CodeOf(r.Err); c != "" {
		return c
	}
	return "error"
}
