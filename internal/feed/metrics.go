package feed

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Registerer takes metrics; it is Prometheus's.
type Registerer = prometheus.Registerer

type metrics struct {
	delivered  prometheus.Counter
	failed     prometheus.Counter
	retries    prometheus.Counter
	duplicates prometheus.Counter
	commits    prometheus.Counter
	unsafe     prometheus.Counter
	sessions   prometheus.Counter
	partitions prometheus.Gauge
	stopped    prometheus.Gauge
	seconds    prometheus.Histogram
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.delivered, m.failed, m.retries, m.duplicates, m.commits, m.unsafe, m.sessions, m.partitions, m.stopped, m.seconds}
}

// newMetrics registers the metrics of a group's member; reg may be nil. It
// returns an error if another member has them registered.
func newMetrics(reg Registerer, group string, topics []string) (*metrics, error) {
	labels := prometheus.Labels{"group": group, "topics": strings.Join(topics, ",")}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "cellog_feed_" + name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "cellog_feed_" + name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		delivered:  counter("cells_total", "Cells that were handed to the function and finished."),
		failed:     counter("failures_total", "Calls of the function that failed, panics included."),
		retries:    counter("retries_total", "Calls of the function with cells that had failed before."),
		duplicates: counter("duplicates_total", "Records that were dropped because their cell had been read already."),
		commits:    counter("commits_total", "Offset commits that the broker accepted."),
		unsafe:     counter("commit_failures_total", "Offset commits that failed; the work is done again if this member dies now."),
		sessions:   counter("session_failures_total", "Times the member could not join its group or was put out of it."),
		partitions: gauge("partitions", "Partitions that this member holds."),
		stopped:    gauge("stopped_partitions", "Partitions that cannot go on: a hole, expired records, or a record that is no cell."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cellog_feed_handle_seconds", Help: "Duration of one call of the function.", ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}),
	}
	if reg == nil {
		return m, nil
	}
	for i, c := range m.all() {
		if err := reg.Register(c); err != nil {
			for _, done := range m.all()[:i] {
				reg.Unregister(done)
			}
			var twice prometheus.AlreadyRegisteredError
			if errors.As(err, &twice) {
				err = errors.New("two members of a group in one process need a registry each")
			}
			return nil, fmt.Errorf("feed %s: metrics: %w", group, err)
		}
	}
	return m, nil
}

// unregister lets a later member of the same group register its own.
func (m *metrics) unregister(reg Registerer) {
	if reg == nil {
		return
	}
	for _, c := range m.all() {
		reg.Unregister(c)
	}
}
