package triggers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Registerer takes metrics; it is Prometheus's.
type Registerer = prometheus.Registerer

type metrics struct {
	delay *prometheus.HistogramVec
	lag   *lagCollector
}

// newMetrics registers the metrics; reg may be nil. lags returns the lag of
// each trigger by name.
func newMetrics(reg Registerer, lags func() map[string]time.Duration) *metrics {
	m := &metrics{
		delay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "cellog_triggers_delay_seconds",
			Help:    "From a cell's creation, by the master's clock, to the begin of its trigger's first call.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"trigger"}),
		lag: &lagCollector{
			lags: lags,
			desc: prometheus.NewDesc("cellog_triggers_lag_seconds",
				"Age of the oldest unfinished cell of the trigger or, when it has none, of the newest heartbeat that came all the way through Kafka.",
				[]string{"trigger"}, nil),
		},
	}
	if reg != nil {
		reg.MustRegister(m.delay, m.lag)
	}
	return m
}

func (m *metrics) unregister(reg Registerer) {
	if reg != nil {
		reg.Unregister(m.delay)
		reg.Unregister(m.lag)
	}
}

// lagCollector asks for the lags when it is scraped.
type lagCollector struct {
	desc *prometheus.Desc
	lags func() map[string]time.Duration
}

// Describe sends the one description.
func (c *lagCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect sends one gauge per trigger.
func (c *lagCollector) Collect(out chan<- prometheus.Metric) {
	for name, lag := range c.lags() {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, lag.Seconds(), name)
	}
}
