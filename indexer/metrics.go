package indexer

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Registerer takes metrics; it is Prometheus's.
type Registerer = prometheus.Registerer

type metrics struct {
	cells, mismatches, rows *prometheus.CounterVec
	visible                 *prometheus.HistogramVec
	applySeconds            *prometheus.HistogramVec
	applyErrors             *prometheus.CounterVec
}

// newMetrics registers the metrics; reg may be nil. lags returns the lag of
// each index, by datastore/name.
func newMetrics(reg Registerer, lags func() map[string]time.Duration) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "cellog", Subsystem: "indexer", Name: name, Help: help}, labels)
	}
	m := &metrics{
		cells:      counter("cells_total", "Cells that were applied to the index.", "datastore", "index"),
		mismatches: counter("type_mismatches_total", "Fields that were of the wrong type in a cell, and are therefore null.", "datastore", "index"),
		rows:       counter("rows_total", "Rows that batches touched, each once per batch.", "datastore", "index"),
		visible: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "cellog", Subsystem: "indexer", Name: "visible_seconds",
			Help:    "Time from a cell's commit in MySQL to its visibility in the index, of the newest and the oldest cell of each batch.",
			Buckets: []float64{.001, .002, .005, .01, .015, .02, .03, .04, .06, .1, .2, .5, 1, 5, 30, 300, 3600}},
			[]string{"datastore", "index"}),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "cellog", Subsystem: "indexer", Name: "apply_seconds",
			Help:    "Time that it took to apply a batch to the tables.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}},
			[]string{"datastore"}),
		applyErrors: counter("apply_errors_total", "Attempts to apply a batch that failed; the batch is applied again.", "datastore"),
	}
	lag := &lagCollector{lags: lags, desc: prometheus.NewDesc("cellog_indexer_lag_seconds",
		"Age of the oldest cell that is not in the index yet or, when there is none, of the newest heartbeat that came all the way through Kafka.",
		[]string{"datastore", "index"}, nil)}
	if reg != nil {
		reg.MustRegister(m.cells, m.mismatches, m.rows, m.visible, m.applySeconds, m.applyErrors, lag)
	}
	return m
}

// lagCollector asks for the lags when it is scraped.
type lagCollector struct {
	desc *prometheus.Desc
	lags func() map[string]time.Duration
}

// Describe sends the one description.
func (c *lagCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect sends one gauge per index.
func (c *lagCollector) Collect(out chan<- prometheus.Metric) {
	for name, lag := range c.lags() {
		datastore, index, _ := strings.Cut(name, "/")
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, lag.Seconds(), datastore, index)
	}
}
