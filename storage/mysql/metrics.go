package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellog/cellog/storage"
)

// Registerer takes the metrics of a Config.
type Registerer = prometheus.Registerer

type metrics struct {
	cells          *prometheus.CounterVec
	batchCells     prometheus.Histogram
	writeSeconds   prometheus.Histogram
	redos          prometheus.Counter
	resolves       prometheus.Counter
	jointShards    prometheus.Histogram
	splits         prometheus.Counter
	duplicateLooks prometheus.Counter
	staleRoutes    prometheus.Counter
	uncopied       prometheus.Counter
	nodeUp         *prometheus.GaugeVec
	bufferedCells  *prometheus.GaugeVec
	bufferedAge    *prometheus.GaugeVec
	rejectedCells  *prometheus.GaugeVec
	breakerOpen    *prometheus.GaugeVec
	clusterOpen    *prometheus.GaugeVec
	masterWritable *prometheus.GaugeVec
	lookAge        *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "cellog_storage_" + name, Help: help})
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "cellog_storage_" + name, Help: help}, labels)
	}
	m := &metrics{
		cells: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cellog_storage_cells_total",
			Help: "Cells that were written, by outcome: created, same, conflict, or the code of the error.",
		}, []string{"outcome"}),
		batchCells: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cellog_storage_batch_cells", Help: "Cells per write transaction.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
		}),
		writeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cellog_storage_write_seconds", Help: "Time of one write with all its attempts.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}),
		redos: counter("redos_total", "Write attempts that kept nothing and were made again: deadlock, lock timeout, lost connection."),
		jointShards: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cellog_storage_joint_shards", Help: "Shards per write transaction of more than one shard.",
			Buckets: []float64{2, 4, 8, 16, 32, 64, 128, 256, 512},
		}),
		splits:         counter("splits_total", "Transactions of several shards that kept nothing; their writes went on one by one."),
		resolves:       counter("resolves_total", "Writes whose answer was lost and whose outcome was looked up under the shard's lock."),
		duplicateLooks: counter("duplicate_looks_total", "Write transactions that met a key which was taken."),
		staleRoutes:    counter("route_looks_total", "Looks for a single shard's place, mostly after a stale route."),
		uncopied:       counter("uncopied_cells_total", "Cells of which no other cluster's master took a copy, so that their answers waited until they were final."),
		nodeUp:         gauge("node_up", "Whether a server answered the last look: 1 or 0.", "cluster", "node"),
		bufferedCells:  gauge("buffered_cells", "Copies that a server holds of other clusters' cells: those that are not final yet, and those whose primary gave no answer.", "cluster", "node"),
		bufferedAge:    gauge("buffered_age_seconds", "Age of the oldest of those copies; 0: there is none. Alert on a minute: a shard has no primary, or its cells do not reach Kafka.", "cluster", "node"),
		rejectedCells:  gauge("rejected_cells", "Copies on a server that lost to another body, or were refused for good.", "cluster", "node"),
		breakerOpen:    gauge("breaker_open", "1 while a server is left alone because it gave no answers.", "cluster", "node"),
		clusterOpen:    gauge("cluster_open", "1 if the newest term of a cluster in Kafka is open, 0 while it is claimed, or not known.", "cluster"),
		masterWritable: gauge("master_writable", "1 if the node that a cluster's newest term opened answered the last look, and took writes.", "cluster"),
		lookAge:        gauge("term_look_age_seconds", "Age of the last look at a cluster's terms in Kafka; above 2 s reads of its master are marked stale.", "cluster"),
	}
	if reg != nil {
		reg.MustRegister(m.cells, m.batchCells, m.writeSeconds, m.redos, m.resolves, m.jointShards, m.splits, m.duplicateLooks, m.staleRoutes, m.uncopied, m.nodeUp, m.bufferedCells, m.bufferedAge,
			m.rejectedCells, m.breakerOpen, m.clusterOpen, m.masterWritable, m.lookAge)
	}
	return m
}

// observeBuffer takes down what copies a node holds. What it does not answer
// stays as it was.
func (m *metrics) observeBuffer(ctx context.Context, n *node, any bool) {
	count, age := 0.0, 0.0
	if any {
		var oldest sql.NullTime
		if err := n.read.QueryRowContext(ctx, countCopies).Scan(&count); err != nil {
			return
		}
		// The lowest id is the oldest but for those put at the same moment.
		if err := n.read.QueryRowContext(ctx, "SELECT LEAST(COALESCE(a, b), COALESCE(b, a)) FROM (SELECT (SELECT buffered_at FROM cellog_buffer.buffered_cells ORDER BY id LIMIT 1) AS a, "+
			"(SELECT MIN(buffered_at) FROM cellog_buffer.numbered_copies) AS b) AS oldest").Scan(&oldest); err != nil {
			return
		}
		if oldest.Valid {
			age = max(time.Since(oldest.Time).Seconds(), 0)
		}
	}
	var rejected float64
	if err := n.read.QueryRowContext(ctx, "SELECT COUNT(*) FROM cellog_buffer.rejected_cells").Scan(&rejected); err == nil {
		m.rejectedCells.WithLabelValues(n.cluster, n.Name).Set(rejected)
	}
	m.bufferedCells.WithLabelValues(n.cluster, n.Name).Set(count)
	m.bufferedAge.WithLabelValues(n.cluster, n.Name).Set(age)
}

// observeNodes takes down what the last look found of a cluster.
func (m *metrics) observeNodes(c *cluster, cfg *Config) {
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	var o storage.Opened
	if cfg.Masters != nil {
		o = cfg.Masters(c.name)
		m.clusterOpen.WithLabelValues(c.name).Set(one(o.Node != ""))
		if !o.Looked.IsZero() {
			m.lookAge.WithLabelValues(c.name).Set(cfg.Now().Sub(o.Looked).Seconds())
		}
	}
	writable := false
	for _, n := range c.nodes {
		m.breakerOpen.WithLabelValues(c.name, n.Name).Set(one(n.breaker.Open()))
		writable = writable || n.Name == o.Node && n.isWritable()
	}
	if o.Node != "" {
		m.masterWritable.WithLabelValues(c.name).Set(one(writable))
	}
}

func (m *metrics) observeWrite(b *batch, took time.Duration) {
	m.batchCells.Observe(float64(len(b.puts)))
	m.writeSeconds.Observe(took.Seconds())
	for i, err := range b.errs {
		label := b.stored[i].Outcome.String()
		if err != nil {
			label = "error"
			var c storage.Coder
			if errors.As(err, &c) {
				label = c.Code()
			}
		}
		m.cells.WithLabelValues(label).Inc()
	}
}
