package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/schemas/position"
)

// readyTimeout bounds the wait until everything serves: the first heartbeats
// of every cluster have come through Kafka.
const readyTimeout = 60 * time.Second

// DefaultShards is how many shards Dev gives a new datastore.
const DefaultShards = 16

// DevConfig says what Dev runs.
type DevConfig struct {
	// Local are the private servers.
	Local local.Config
	// KafkaPrefix is the prefix of all topics, groups and transactional ids.
	KafkaPrefix string
	// Datastore is made if it is not there, with so many Shards; zero means
	// what it has, and DefaultShards for a new one.
	Datastore string
	Shards    int
	// Ack is the datastore's; empty: the configuration's default.
	Ack string
	// AutoPromote is after how long without a master another node of its
	// cluster is promoted; zero: never.
	AutoPromote time.Duration
	// Promoted, if set, is called after a promotion.
	Promoted func(Promoted)
	// Listen and AdminListen are the addresses of the HTTP API and of the
	// admin server; empty ones mean the defaults of the configuration.
	Listen, AdminListen string
	// Schemas is the directory of index definitions; empty means no index.
	Schemas string
	// MergedTopic also publishes every column to <datastore>._all.
	MergedTopic bool
	// Owned, if set, is called once the data directory is this process's own,
	// before anything serves.
	Owned func() error
	// Env.Registry is ignored: Dev has an admin server of its own.
	Env Env
}

// Dev is all of cellog in one process.
type Dev struct {
	cfg     DevConfig
	config  *config.Config
	local   *local.Local
	admin   *obs.Admin
	worker  *Worker
	tailers *Tailers
	indexer *Indexer
	keeper  *Keeper
	failed  chan error

	stopOnce sync.Once
	stopErr  error
	watch    context.CancelFunc
	watching sync.WaitGroup
}

// StartDev starts private servers and all roles, makes the datastore, and
// returns when everything serves. On an error nothing is left running.
func StartDev(ctx context.Context, cfg DevConfig) (*Dev, error) {
	d := &Dev{cfg: cfg, failed: make(chan error, 1)}
	if err := d.start(ctx); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		return nil, errors.Join(err, d.Stop(stop))
	}
	return d, nil
}

func (d *Dev) start(ctx context.Context) (err error) {
	log := d.cfg.Env.log()
	d.cfg.Local.LeaveReadOnly = true
	if d.local, err = local.Start(ctx, d.cfg.Local); err != nil {
		return err
	}
	if d.cfg.Owned != nil {
		if err := d.cfg.Owned(); err != nil {
			return err
		}
	}
	d.config = d.configuration()
	if err := config.CheckAck(d.cfg.Ack, len(d.config.Clusters)); err != nil {
		return fmt.Errorf("ack: %w; the number of clusters is that of the data directory %s", err, d.cfg.Local.DataDir)
	}
	env := d.cfg.Env
	if d.admin, err = obs.New(obs.Config{Listen: d.config.Admin.Listen, PProf: true, Log: log}); err != nil {
		return err
	}
	env.Registry = d.admin.Registry()
	if err := d.openMasters(ctx, env); err != nil {
		return err
	}
	shards, err := d.shards(ctx)
	if err != nil {
		return err
	}
	create := Create{Name: d.cfg.Datastore, Shards: shards, Grant: true}
	if err := CreateDatastore(ctx, d.config, env, create); err != nil {
		return err
	}
	if d.worker, err = NewWorker(d.config, env); err != nil {
		return err
	}
	if d.tailers, err = NewTailers(d.config, env); err != nil {
		return err
	}
	if d.indexer, err = NewIndexer(d.config, env); err != nil {
		return err
	}
	d.admin.AddCheck("worker", d.worker.Ready)
	d.admin.AddCheck("tailer", d.tailers.Ready)
	d.admin.AddCheck("indexer", d.indexer.Ready)
	d.admin.AddCheck("servers", func(context.Context) error { return d.local.Ready() })
	if err := d.admin.Start(ctx); err != nil {
		return err
	}
	for _, r := range []Role{d.worker, d.tailers, d.indexer} {
		if err := r.Start(ctx); err != nil {
			return err
		}
	}
	d.keeper.Start()
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.watch = cancel
	d.watching.Go(func() { d.waitForFailure(watch) })
	return d.waitUntilReady(ctx)
}

// openMasters makes the masters take writes: those that Kafka says, or in a
// cluster of which none was opened yet the one that was made as such.
func (d *Dev) openMasters(ctx context.Context, env Env) error {
	d.keeper = NewKeeper(d.config, env, d.cfg.AutoPromote)
	d.keeper.rejoins = d.cfg.AutoPromote > 0
	d.keeper.promoted = func(p Promoted) {
		if err := d.local.SetMaster(p.Cluster, p.Node); err != nil {
			env.log().Error("the promotion is not in the data directory's topology", "error", err)
		}
		if d.cfg.Promoted != nil {
			d.cfg.Promoted(p)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	has, err := opened(ctx, d.config, env)
	if err != nil {
		return err
	}
	for _, c := range d.local.Clusters() {
		record, ok := has[c.Name]
		if ok && record.State == position.Open {
			if err := d.local.SetMaster(c.Name, record.Node); err != nil {
				return err
			}
		}
		if ok {
			continue
		}
		db, err := openAdmin(d.config.Cluster(c.Name), c.Nodes[0].Name)
		if err != nil {
			return err
		}
		if err := errors.Join(mysqlreplica.SetReadOnly(ctx, db, false), mysqlconn.Close(db)); err != nil {
			return fmt.Errorf("node %s: %w", c.Nodes[0].Name, err)
		}
	}
	return d.keeper.Ensure(ctx)
}

// shards returns how many shards the datastore is to have.
func (d *Dev) shards(ctx context.Context) (int, error) {
	if d.cfg.Shards != 0 {
		return d.cfg.Shards, nil
	}
	all, err := Datastores(ctx, d.config, d.cfg.Env)
	if mysqlconn.IsMissing(err) {
		return DefaultShards, nil // the servers are new
	}
	if err != nil {
		return 0, err
	}
	for _, ds := range all {
		if ds.Name == d.cfg.Datastore {
			return ds.Shards, nil
		}
	}
	return DefaultShards, nil
}

// waitUntilReady polls the readiness checks, which the probes of an operator
// see too.
func (d *Dev) waitUntilReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		failed := d.admin.RunChecks(ctx)
		if len(failed) == 0 {
			return nil
		}
		if failed["tailer"] != nil && len(failed) == 1 && errors.Is(d.tailers.Ready(ctx), cdc.ErrPaused) {
			return nil // as its operator wants it
		}
		var why []string
		for name, err := range failed {
			why = append(why, name+": "+err.Error())
		}
		select {
		case err := <-d.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("not ready: %s: %w", strings.Join(why, "; "), ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// waitForFailure puts the first failure of a part on Failed.
func (d *Dev) waitForFailure(ctx context.Context) {
	var err error
	select {
	case <-ctx.Done():
		return
	case err = <-d.worker.Failed():
	case err = <-d.indexer.Failed():
	case err = <-d.admin.Err():
	}
	d.failed <- err
}

// Failed gets the error of the first part that ended by itself.
func (d *Dev) Failed() <-chan error { return d.failed }

// URL is the base URL of the HTTP API, Admin that of the admin server.
func (d *Dev) URL() string { return "http://" + d.worker.Addr() }

// Admin is the base URL of the admin server.
func (d *Dev) Admin() string { return "http://" + d.admin.Addr() }

// Config is the configuration that the roles run with. Tools and further
// roles in the same process may use it; it is not to be changed.
func (d *Dev) Config() *config.Config { return d.config }

// Local are the private servers.
func (d *Dev) Local() *local.Local { return d.local }

// Tailers are the running tailers.
func (d *Dev) Tailers() *Tailers { return d.tailers }

// Registry takes the metrics of further parts of the process.
func (d *Dev) Registry() obs.Registerer { return d.admin.Registry() }

// Stop ends everything in the order in which cells travel: no new puts, then
// what is committed goes to Kafka, then into the indexes, then the servers
// stop. It is safe twice.
func (d *Dev) Stop(ctx context.Context) error {
	d.stopOnce.Do(func() {
		if d.watch != nil {
			d.watch()
			d.watching.Wait()
		}
		var errs []error
		if d.keeper != nil {
			d.keeper.Stop()
		}
		if d.worker != nil {
			errs = append(errs, d.worker.Stop(ctx))
		}
		if d.tailers != nil {
			errs = append(errs, d.tailers.Stop(ctx))
		}
		if d.indexer != nil {
			errs = append(errs, d.indexer.Stop(ctx))
		}
		if d.admin != nil {
			errs = append(errs, d.admin.Stop(ctx))
		}
		if d.local != nil {
			errs = append(errs, d.local.Stop(ctx))
		}
		d.stopErr = errors.Join(errs...)
	})
	return d.stopErr
}

// configuration is what a configuration file for the private servers would
// say.
func (d *Dev) configuration() *config.Config {
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.Prefix = d.local.KafkaAddrs(), d.cfg.KafkaPrefix
	a := d.local.Accounts()
	acc := func(user, password string) config.Account {
		return config.Account{User: user, Password: config.NewSecret(password)}
	}
	for _, c := range d.local.Clusters() {
		cl := config.Cluster{Name: c.Name, Accounts: config.Accounts{
			Worker: acc(a.Worker.User, a.Worker.Password), Tailer: acc(a.Tailer.User, a.Tailer.Password),
			Indexer: acc(a.Indexer.User, a.Indexer.Password), Admin: acc(a.Admin.User, a.Admin.Password),
			Replica: acc(a.Replica.User, a.Replica.Password),
		}}
		for _, n := range c.Nodes {
			cl.Nodes = append(cl.Nodes, config.Node{Name: n.Name, Addr: n.Addr})
		}
		cfg.Clusters = append(cfg.Clusters, cl)
	}
	if d.cfg.Listen != "" {
		cfg.Worker.Listen = d.cfg.Listen
	}
	if d.cfg.AdminListen != "" {
		cfg.Admin.Listen = d.cfg.AdminListen
	}
	cfg.Datastores = []config.Datastore{{Name: d.cfg.Datastore, Ack: d.cfg.Ack, MergedTopic: d.cfg.MergedTopic}}
	cfg.Indexer.Schemas = d.cfg.Schemas
	return &cfg
}
