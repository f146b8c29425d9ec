package indexer

import "github.com/prometheus/client_golang/prometheus"

// Registerer takes metrics; it is Prometheus's.
type Registerer = prometheus.Registerer

type metrics struct {
	cells, mismatches, rows *prometheus.CounterVec
	lag                     *prometheus.HistogramVec
	applySeconds            *prometheus.HistogramVec
	applyErrors             *prometheus.CounterVec
}

func newMetrics(reg Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "cellog", Subsystem: "indexer", Name: name, Help: help}, labels)
	}
	m := &metrics{
		cells:      counter("cells_total", "Cells that were applied to the index.", "datastore", "index"),
		mismatches: counter("type_mismatches_total", "Fields that were of the wrong type in a cell, and are therefore null.", "datastore", "index"),
		rows:       counter("rows_total", "Rows that batches touched, each once per batch.", "datastore", "index"),
		lag: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "cellog", Subsystem: "indexer", Name: "lag_seconds",
			Help:    "Time from a cell's commit in MySQL to its visibility in the index, of the newest and the oldest cell of each batch.",
			Buckets: []float64{.001, .002, .005, .01, .015, .02, .03, .04, .06, .1, .2, .5, 1, 5, 30, 300, 3600}},
			[]string{"datastore", "index"}),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "cellog", Subsystem: "indexer", Name: "apply_seconds",
			Help:    "Time that it took to apply a batch to the tables.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}},
			[]string{"datastore"}),
		applyErrors: counter("apply_errors_total", "Attempts to apply a batch that failed; the batch is applied again.", "datastore"),
	}
	if reg != nil {
		reg.MustRegister(m.cells, m.mismatches, m.rows, m.lag, m.applySeconds, m.applyErrors)
	}
	return m
}
