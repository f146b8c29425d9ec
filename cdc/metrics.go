package cdc

import "github.com/prometheus/client_golang/prometheus"

// Registerer takes the metrics of a Tailer.
type Registerer = prometheus.Registerer

type metrics struct {
	cells        prometheus.Counter
	bytes        prometheus.Counter
	commits      prometheus.Counter
	commitTime   prometheus.Histogram
	filled       prometheus.Counter
	skipped      prometheus.Counter
	fillPaused   prometheus.Gauge
	sessions     *prometheus.CounterVec
	lag          prometheus.GaugeFunc
	beatFailures prometheus.Counter
	stopped      prometheus.Gauge
	queueBytes   prometheus.Gauge
	standingBy   prometheus.Gauge
	paused       prometheus.Gauge
	lagCells     prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, cluster string, lag, lagCells func() float64) *metrics {
	labels := prometheus.Labels{"cluster": cluster}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		cells:   counter("cellog_cdc_cells_published_total", "Cells whose Kafka transaction was committed."),
		bytes:   counter("cellog_cdc_published_bytes_total", "Bytes of keys, values and headers of the published cells."),
		commits: counter("cellog_cdc_commits_total", "Kafka transactions committed."),
		commitTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cellog_cdc_commit_seconds",
			Help: "Time from the first record of a Kafka transaction to its commit.", ConstLabels: labels,
			Buckets: []float64{.001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10}}),
		filled:     counter("cellog_cdc_cells_from_entity_total", "Cells read from the entity table because the binlog did not have them."),
		skipped:    counter("cellog_cdc_cells_skipped_total", "Rows that the binlog repeated after a restart."),
		fillPaused: gauge("cellog_cdc_fill_paused", "1 while reading the entity tables pauses because the node lags."),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cellog_cdc_sessions_total",
			Help: "Ended sessions by reason: stopped, paused, fenced, refused, not_open, no_node, silent, failed.", ConstLabels: labels}, []string{"reason"}),
		lag: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cellog_cdc_lag_seconds", ConstLabels: labels,
			Help: "Age of the newest heartbeat when it was committed to Kafka; it grows while the next one is overdue, and is 0 while another tailer is at work."}, lag),
		lagCells: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cellog_cdc_lag_cells", ConstLabels: labels,
			Help: "Cells that the last look at the master's shards found and that are not in Kafka; 0 while another tailer is at work."}, lagCells),
		beatFailures: counter("cellog_cdc_beat_failures_total", "Heartbeat rows that could not be written on the master."),
		stopped:      gauge("cellog_cdc_shards_stopped", "Shards that are stopped by an error and need an operator."),
		queueBytes:   gauge("cellog_cdc_queue_bytes", "Memory of the cells that are read and not yet committed, about."),
		standingBy:   gauge("cellog_cdc_standing_by", "1 while another tailer is at work."),
		paused:       gauge("cellog_cdc_paused", "1 while an operator has paused the cluster (cellog tail pause)."),
	}
	if reg != nil {
		reg.MustRegister(m.cells, m.bytes, m.commits, m.commitTime, m.filled, m.skipped, m.fillPaused, m.sessions,
			m.lag, m.beatFailures, m.stopped, m.queueBytes, m.standingBy, m.paused, m.lagCells)
	}
	return m
}
