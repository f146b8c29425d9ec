package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/internal/devbroker"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlserver"
)

// The roles of a node.
const (
	Master = "master"
	Minion = "minion"
)

// Node is a running MySQL server.
type Node struct {
	Name string
	Role string // Master or Minion, as far as is known here, see SetMaster
	Addr string // host:port
	// Socket is the path of the unix socket, where root needs no password.
	Socket string
	// User and Password are the admin's.
	User, Password string
	PID            int
}

// Cluster is a storage cluster; its master comes first.
type Cluster struct {
	Name  string
	Nodes []Node
}

// Local is the running servers.
type Local struct {
	cfg      Config
	lock     *os.File
	topology *topology
	accounts mysqlaccounts.Set
	clusters []*cluster
	broker   *devbroker.Broker // nil when Kafka is elsewhere

	saving sync.Mutex // held by whoever changes and saves topology after Start

	unsupervise context.CancelFunc // nil before all servers were up
	supervisors sync.WaitGroup
	stop        sync.Once
	stopErr     error
}

// Start starts all servers, the first time in a directory as new ones. When it
// fails, none is left running. ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*Local, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("deploy/local: data_dir: %w", err)
	}
	cfg.DataDir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("deploy/local: %w", err)
	}
	l := &Local{cfg: cfg}
	if l.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		// The children are ours: they go, whatever ctx says.
		return nil, errors.Join(err, l.Stop(context.WithoutCancel(ctx)))
	}
	return l, nil
}

func (l *Local) start(ctx context.Context) error {
	var err error
	if l.topology, err = loadTopology(l.cfg); err != nil {
		return err
	}
	if l.accounts, err = loadAccounts(l.cfg.DataDir); err != nil {
		return err
	}
	bin, err := mysqlserver.Find(l.topology.Flavour, l.cfg.Binary)
	if err != nil {
		return err
	}
	l.cfg.Logger.Info("starting private servers", "flavour", bin.Flavour, "version", bin.Version, "clusters", len(l.topology.Clusters), "dir", l.cfg.DataDir)
	g, gctx := errgroup.WithContext(ctx)
	for _, state := range l.topology.Clusters {
		c := &cluster{cfg: l.cfg, bin: bin, state: state, accounts: l.accounts}
		l.clusters = append(l.clusters, c)
		g.Go(func() error {
			if err := c.start(gctx); err != nil {
				return fmt.Errorf("cluster %s: %w", c.state.Name, err)
			}
			return nil
		})
	}
	if len(l.cfg.KafkaBrokers) == 0 {
		g.Go(l.startBroker)
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := l.topology.save(l.cfg.DataDir); err != nil {
		return err
	}
	l.supervise()
	return nil
}

// SetMaster notes, also for the next Start, that a node is the master of its
// cluster. It changes nothing on any server.
func (l *Local) SetMaster(cluster, node string) error {
	for _, c := range l.clusters {
		if c.state.Name != cluster {
			continue
		}
		if !slices.ContainsFunc(c.state.Nodes, func(n *nodeState) bool { return n.Name == node }) {
			return fmt.Errorf("deploy/local: cluster %s has no node %s", cluster, node)
		}
		l.saving.Lock()
		defer l.saving.Unlock()
		c.mu.Lock()
		c.state.Master = node
		c.mu.Unlock()
		return l.topology.save(l.cfg.DataDir)
	}
	return fmt.Errorf("deploy/local: there is no cluster %s", cluster)
}

// startBroker starts the broker on its port, or on another one if that is taken.
func (l *Local) startBroker() error {
	c := devbroker.Config{Dir: filepath.Join(l.cfg.DataDir, "kafka"), Port: l.topology.KafkaPort, NoSync: !l.cfg.KafkaSync, Logger: l.cfg.Logger}
	var err error
	if l.broker, err = devbroker.Start(c); errors.Is(err, devbroker.ErrPortTaken) {
		c.Port = 0
		l.broker, err = devbroker.Start(c)
	}
	if err != nil {
		return err
	}
	l.topology.KafkaPort = l.broker.Port()
	return nil
}

// supervise brings servers that end by themselves back until Stop.
func (l *Local) supervise() {
	ctx, cancel := context.WithCancel(context.Background())
	l.unsupervise = cancel
	for _, c := range l.clusters {
		for i := range c.state.Nodes {
			l.supervisors.Go(func() { c.supervise(ctx, i) })
		}
	}
}

// Ready returns nil, or which servers have ended and are not back yet, and why.
func (l *Local) Ready() error {
	var errs []error
	for _, c := range l.clusters {
		errs = append(errs, c.ready())
	}
	return errors.Join(errs...)
}

// Clusters returns the clusters and their nodes.
func (l *Local) Clusters() []Cluster {
	var out []Cluster
	for _, c := range l.clusters {
		out = append(out, c.describe())
	}
	return out
}

// KafkaAddrs returns the Kafka bootstrap servers.
func (l *Local) KafkaAddrs() []string {
	if l.broker == nil {
		return l.cfg.KafkaBrokers
	}
	return l.broker.Addrs()
}

// Accounts returns the accounts, the same on all servers.
func (l *Local) Accounts() mysqlaccounts.Set { return l.accounts }

// Stop stops minions, then masters, then the broker, and gives the directory
// back; twice is fine. When ctx ends first, servers are killed, which loses
// nothing, and the error says so.
func (l *Local) Stop(ctx context.Context) error {
	l.stop.Do(func() {
		if l.unsupervise != nil {
			l.unsupervise()
			l.supervisors.Wait()
		}
		errs := make([]error, len(l.clusters))
		var wg sync.WaitGroup
		for i, c := range l.clusters {
			wg.Go(func() { errs[i] = c.stop(ctx) })
		}
		wg.Wait()
		if l.broker != nil {
			l.broker.Stop()
		}
		l.stopErr = errors.Join(append(errs, l.lock.Close())...)
	})
	return l.stopErr
}
