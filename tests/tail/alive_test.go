package tail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/tests/harness"
)

// alive is a cluster that is tailed as in production, with production's
// time-outs, and a link between its tailer and each server and the broker.
type alive struct {
	*rig
	set     *mysqltest.Set
	direct  *config.Config // without the links: an operator's
	linked  *config.Config
	nodes   map[string]*harness.Link
	kafka   *harness.Link
	tailers *app.Tailers
	metrics *prometheus.Registry
}

// newAlive starts a cluster of a master, n1, and minions, n2, n3, …, and its
// tailer, and returns when cells flow, with what the test is to draw from. These
// tests wait for time-outs most of their time, so they run beside each other.
func newAlive(t *testing.T, minions int) (*alive, *rand.Rand) {
	t.Helper()
	t.Parallel()
	set := mysqltest.Cluster(t, minions)
	a := &alive{set: set, rig: newRig(t, set.Master, 2), nodes: map[string]*harness.Link{}}
	acc := func(a mysqlaccounts.Account) config.Account {
		return config.Account{User: a.User, Password: config.NewSecret(a.Password)}
	}
	blank := func() (*config.Config, *config.Cluster) {
		cfg := config.Default()
		cfg.Kafka.Prefix = a.prefix
		all := mysqltest.Accounts
		cfg.Clusters = []config.Cluster{{Name: a.cluster, Accounts: config.Accounts{Worker: acc(all.Worker), Tailer: acc(all.Tailer), Admin: acc(all.Admin), Replica: acc(all.Replica)}}}
		return &cfg, &cfg.Clusters[0]
	}
	var direct, linked *config.Cluster
	a.direct, direct = blank()
	a.linked, linked = blank()
	for i, n := range append([]*mysqltest.Node{set.Master}, set.Minions...) {
		name := fmt.Sprintf("n%d", i+1)
		a.nodes[name] = harness.NewLink(t, "tailer", name, n.Addr())
		direct.Nodes = append(direct.Nodes, config.Node{Name: name, Addr: n.Addr()})
		linked.Nodes = append(linked.Nodes, config.Node{Name: name, Addr: a.nodes[name].Addr()})
	}
	a.kafka = harness.NewKafkaLink(t, "tailer", "broker", a.rig.kafka.Addrs[0])
	a.direct.Kafka.Brokers, a.linked.Kafka.Brokers = a.rig.kafka.Addrs, []string{a.kafka.Addr()}
	a.start(t)
	rnd := rand.New(rand.NewPCG(harness.Seed(t), 0))
	a.putSome(t, rnd, 50)
	a.flows(t)
	return a, rnd
}

func (a *alive) start(t *testing.T) {
	t.Helper()
	a.tailers, a.metrics = a.another(t)
}

// another starts one more tailer of the cluster.
func (a *alive) another(t *testing.T) (*app.Tailers, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	tl, err := app.NewTailers(a.linked, app.Env{Log: slog.New(slog.NewTextHandler(logWriter{t}, nil)), Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	if err := tl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, tl) })
	return tl, reg
}

func end(t *testing.T, tl *app.Tailers) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := tl.Stop(ctx); err != nil {
		t.Error("stop the tailer:", err)
	}
}

func (a *alive) status() cdc.Status { return a.tailers.Status()[a.cluster] }

// metric is a metric's value, of all its labels.
func (a *alive) metric(t *testing.T, name string) (v float64) {
	t.Helper()
	all, err := a.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				v += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return v
}

// told is the operator's view.
func (a *alive) told(t *testing.T) app.TailStatus {
	t.Helper()
	all, err := app.TailStatuses(t.Context(), a.direct, app.Env{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// flows returns when all cells are in Kafka, each once and in order, and the
// status, the readiness and the metrics say that all is well.
func (a *alive) flows(t *testing.T) {
	t.Helper()
	a.waitDrained(t, 2*time.Minute)
	a.mustBeClean(t)
	waitFor(t, time.Minute, func() error {
		s := a.status()
		if err := a.tailers.Ready(t.Context()); err != nil || s.Lag > 3*time.Second || s.LagCells != 0 {
			return fmt.Errorf("lag %s, %d cells, ready: %w", s.Lag, s.LagCells, err)
		}
		if lag, cells := a.metric(t, "cellog_cdc_lag_seconds"), a.metric(t, "cellog_cdc_lag_cells"); lag > 3 || cells != 0 {
			return fmt.Errorf("metrics: lag %v, %v cells", lag, cells)
		}
		return nil
	})
}

// stands returns when the tailer says that it stands still: it is not ready, and
// its lag is at least so long, so many cells, and grows.
func (a *alive) stands(t *testing.T, lag time.Duration, cells int) {
	t.Helper()
	waitFor(t, time.Minute, func() error {
		s := a.status()
		if a.tailers.Ready(t.Context()) == nil || s.Lag < lag || s.LagCells != int64(cells) {
			return fmt.Errorf("lag %s, %d of %d cells, ready: %v", s.Lag, s.LagCells, cells, a.tailers.Ready(t.Context()))
		}
		return nil
	})
	if m := a.metric(t, "cellog_cdc_lag_seconds"); m < lag.Seconds() {
		t.Errorf("metric: lag %v", m)
	}
	if m := a.metric(t, "cellog_cdc_lag_cells"); m != float64(cells) {
		t.Errorf("metric: %v cells", m)
	}
	waitFor(t, time.Minute, func() error {
		if now := a.status().Lag; now < lag+500*time.Millisecond {
			return fmt.Errorf("lag %s does not grow", now)
		}
		return nil
	})
}

// left waits until the tailer has given up a session, and says how long it took.
func (a *alive) left(t *testing.T, before float64, since time.Time) {
	t.Helper()
	waitFor(t, 2*time.Minute, func() error {
		if a.metric(t, "cellog_cdc_sessions_total") == before {
			return fmt.Errorf("the session goes on: %+v", a.status())
		}
		return nil
	})
	t.Logf("left after %s: %v", time.Since(since), a.status().Err)
}

func TestBlackHoleToTheServer(t *testing.T) {
	a, rnd := newAlive(t, 1)
	began, sessions := time.Now(), a.metric(t, "cellog_cdc_sessions_total")
	a.nodes["n2"].Set(harness.Silent)
	a.putSome(t, rnd, 10)
	a.stands(t, 3*time.Second, 10)
	if s := a.told(t); s.State != app.TailStuck || s.Cells != 10 || len(s.Still) == 0 || *s.Heartbeat < 3 || *s.SignOfLife > 3 {
		t.Errorf("the operator is told %+v", s)
	}
	a.left(t, sessions, began)
	waitFor(t, time.Minute, func() error {
		if s := a.status(); !errors.Is(s.Err, cdc.ErrNoNode) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.nodes["n2"].Set(harness.Pass)
	healed := time.Now()
	a.flows(t)
	t.Logf("flows %s after the link was healed", time.Since(healed))
}

// The server answers questions, but a new connection for its binlog is a black
// hole: the tailer gives it up, instead of waiting for a greeting for ever.
func TestBinlogConnectionThatSaysNothing(t *testing.T) {
	a, rnd := newAlive(t, 1)
	a.nodes["n2"].Set(harness.SilentNew)
	sessions := a.metric(t, "cellog_cdc_sessions_total")
	a.killDump(t, a.set.Minions[0])
	a.putSome(t, rnd, 10)
	a.left(t, sessions, time.Now())
	a.stands(t, 3*time.Second, 10)
	a.left(t, sessions+1, time.Now()) // the session that met the silence
	a.nodes["n2"].Set(harness.Pass)
	a.flows(t)
}

// killDump ends the connection over which the tailer reads the binlog.
func (a *alive) killDump(t *testing.T, n *mysqltest.Node) {
	t.Helper()
	id := n.Query(t, "SELECT MAX(id) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
	if id == "" {
		t.Fatal("nobody reads the binlog")
	}
	n.Exec(t, "KILL "+id)
}

func TestFrozenServerIsLeftForAnother(t *testing.T) {
	a, rnd := newAlive(t, 2)
	tailed := a.status().Node
	frozen := a.set.Minions[int(tailed[1]-'2')]
	began := time.Now()
	signal(t, frozen, syscall.SIGSTOP)
	a.putSome(t, rnd, 10)
	a.stands(t, 3*time.Second, 10)
	waitFor(t, 2*time.Minute, func() error {
		if s := a.status(); s.State != "streaming" || s.Node == tailed || s.Node == "n1" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	t.Logf("another node is tailed after %s", time.Since(began))
	a.flows(t)
	a.putSome(t, rnd, 10)
	a.flows(t) // with a frozen minion
	if s := a.told(t); s.State != app.TailFlowing || s.Tailer.Node == tailed {
		t.Errorf("the operator is told %+v", s)
	}
	signal(t, frozen, syscall.SIGCONT)
}

func TestFrozenLastMinionIsWaitedFor(t *testing.T) {
	a, rnd := newAlive(t, 1)
	signal(t, a.set.Minions[0], syscall.SIGSTOP)
	a.putSome(t, rnd, 10)
	a.stands(t, 3*time.Second, 10)
	waitFor(t, 2*time.Minute, func() error {
		err := a.tailers.Ready(t.Context())
		if s := a.status(); !errors.Is(err, cdc.ErrNoNode) || s.Node != "" {
			return fmt.Errorf("%+v, ready: %v", s, err)
		}
		return nil
	})
	signal(t, a.set.Minions[0], syscall.SIGCONT)
	a.flows(t)
}

func signal(t *testing.T, n *mysqltest.Node, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(n.PID(), s); err != nil {
		t.Fatal(err)
	}
}

// A minion that answers, and replicates no more, is left for another.
func TestMinionThatReplicatesNoMore(t *testing.T) {
	a, rnd := newAlive(t, 2)
	tailed := a.status().Node
	deaf := a.set.Minions[int(tailed[1]-'2')]
	began := time.Now()
	deaf.Exec(t, "STOP REPLICA SQL_THREAD")
	a.putSome(t, rnd, 10)
	a.stands(t, 3*time.Second, 10)
	waitFor(t, 2*time.Minute, func() error {
		if s := a.status(); s.State != "streaming" || s.Node == tailed || s.Node == "n1" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	t.Logf("another node is tailed after %s", time.Since(began))
	a.flows(t)
	deaf.Exec(t, "START REPLICA SQL_THREAD")
	a.set.Sync(t)
}

func TestKilledDumpThread(t *testing.T) {
	a, rnd := newAlive(t, 1)
	for range 3 {
		sessions := a.metric(t, "cellog_cdc_sessions_total")
		began := time.Now()
		a.killDump(t, a.set.Minions[0])
		a.putSome(t, rnd, 10)
		a.left(t, sessions, began)
		a.flows(t)
	}
}

func TestThrottledConnection(t *testing.T) {
	a, rnd := newAlive(t, 1)
	a.idle(t, 8) // past the start's second look at the tables, which reads many cells at a time
	sessions := a.metric(t, "cellog_cdc_sessions_total")
	a.nodes["n2"].Set(harness.Throttled)
	const cells = 80
	for range cells { // a minute and more
		if err := a.putBody(t.Context(), 1, randomText(rnd, 10_000), rnd); err != nil {
			t.Fatal(err)
		}
	}
	// It lags, more and more, and cells come through nevertheless.
	var last time.Duration
	for range 3 {
		waitFor(t, time.Minute, func() error {
			s := a.status()
			if s.Lag < max(2*time.Second, last+time.Second) || s.LagCells == 0 || s.LagCells > cells || a.metric(t, "cellog_cdc_lag_cells") == 0 {
				return fmt.Errorf("lag %s after %s, %d cells", s.Lag, last, s.LagCells)
			}
			last = s.Lag
			return nil
		})
	}
	before := a.status().Cells
	waitFor(t, time.Minute, func() error {
		if a.status().Cells == before {
			return errors.New("no cell comes through")
		}
		return nil
	})
	if s := a.told(t); s.State != app.TailCatchingUp || s.Cells == 0 || !s.Flows() {
		t.Errorf("the operator is told %+v", s)
	}
	if a.tailers.Ready(t.Context()) == nil {
		t.Error("ready although heartbeats do not come through")
	}
	if n := a.metric(t, "cellog_cdc_sessions_total"); n != sessions {
		t.Errorf("%v sessions ended: a slow server was taken for a dead one", n-sessions)
	}
	a.nodes["n2"].Set(harness.Pass)
	a.flows(t)
}

func TestIdleStreamIsSeenToFlow(t *testing.T) {
	a, _ := newAlive(t, 1)
	a.idle(t, 12)
	if s := a.told(t); s.State != app.TailFlowing || *s.Lag > 3 || *s.Heartbeat > 3 || s.Cells != 0 || s.Tailer.Node != "n2" || s.Mark == "" {
		t.Errorf("the operator is told %+v", s)
	}
}

// idle waits for so many heartbeats, and demands that all is well.
func (a *alive) idle(t *testing.T, beats int) {
	t.Helper()
	last := a.status().LastBeat
	for range beats {
		waitFor(t, time.Minute, func() error {
			s := a.status()
			if !s.LastBeat.After(last) {
				return errors.New("no heartbeat")
			}
			last = s.LastBeat
			if err := a.tailers.Ready(t.Context()); err != nil || s.Lag > 3*time.Second || time.Since(last) > 3*time.Second || s.LagCells != 0 {
				t.Errorf("%+v, ready: %v", s, err)
			}
			return nil
		})
	}
}

func TestBlackHoleToKafka(t *testing.T) {
	a, rnd := newAlive(t, 1)
	a.kafka.Set(harness.Silent)
	a.putSome(t, rnd, 10)
	a.stands(t, 5*time.Second, 10)
	if s := a.told(t); s.Flows() || s.Cells != 10 || *s.Heartbeat < 4 {
		t.Errorf("the operator is told %+v", s)
	}
	a.kafka.Set(harness.Pass)
	healed := time.Now()
	a.flows(t)
	t.Logf("flows %s after the link was healed", time.Since(healed))
	// Connections that were black holes are dead for ever: new ones must do.
	a.kafka.Set(harness.Silent)
	a.putSome(t, rnd, 10)
	a.stands(t, 3*time.Second, 10)
	a.kafka.Set(harness.Cut)
	a.kafka.Set(harness.Pass)
	healed = time.Now()
	a.flows(t)
	t.Logf("flows %s after the connections were reset", time.Since(healed))
}
