package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/doctor"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// Inspect runs the doctor over all servers and brokers of a configuration.
func Inspect(ctx context.Context, cfg *config.Config, env Env) []doctor.Finding {
	var found []doctor.Finding
	datastores := map[string]storage.Datastore{}
	var clusters []string
	var servers []doctor.Server
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		clusters = append(clusters, c.Name)
		f, s := inspectCluster(ctx, cfg, c, datastores)
		found, servers = append(found, f...), append(servers, s...)
	}
	found = append(found, doctor.Machines(servers)...)
	s := doctor.Stream{Kafka: kafkaConfig(cfg, env, "cellog-doctor"), Prefix: cfg.Kafka.Prefix, Clusters: clusters}
	for _, d := range datastores {
		s.Datastores = append(s.Datastores, doctor.Datastore{Name: d.Name, Partitions: d.Partitions})
	}
	return append(found, doctor.Kafka(ctx, s)...)
}

func inspectCluster(ctx context.Context, cfg *config.Config, c *config.Cluster, datastores map[string]storage.Datastore) (found []doctor.Finding, servers []doctor.Server) {
	for _, n := range c.Nodes {
		db, err := openAdmin(c, n.Name)
		if err != nil {
			found = append(found, doctor.Finding{Where: n.Name, Check: "connection", Level: doctor.Bad, Found: err.Error(), Fix: "set clusters[].accounts.admin"})
			continue
		}
		f, s := doctor.MySQL(ctx, doctor.Node{Cluster: c.Name, Name: n.Name, DB: db, MaxBody: int64(cfg.Limits.BodyBytes)})
		found, servers = append(found, f...), append(servers, s)
		if s.Writable {
			heads, err := mysql.Heads(ctx, db)
			if err == nil && len(heads) > 0 {
				found = append(found, inspectWorker(ctx, c, n, cellog.DatabaseName(heads[0].Datastore, heads[0].Shard))...)
			}
			if all, err := mysql.DatastoresOf(ctx, db); err == nil {
				for _, d := range all {
					datastores[d.Name] = d
				}
			}
		}
		if err := db.Close(); err != nil {
			found = append(found, doctor.Finding{Where: n.Name, Check: "connection", Level: doctor.Warn, Found: err.Error()})
		}
	}
	return append(found, doctor.Cluster(c.Name, servers)...), servers
}

func inspectWorker(ctx context.Context, c *config.Cluster, n config.Node, database string) []doctor.Finding {
	a := WorkerAccount(c.Accounts)
	if a.User == "" || a.User == AdminAccount(c.Accounts).User {
		return []doctor.Finding{{Where: n.Name, Check: "the worker's account", Level: doctor.Warn, Found: "not given", Want: "an account of its own",
			Why: "whether it may change cells was not tried", Fix: "set clusters[].accounts.worker, or give --config"}}
	}
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: n.Addr, User: a.User, Password: a.Password.Reveal(), MaxOpen: 1})
	if err != nil {
		return []doctor.Finding{{Where: n.Name, Check: "the worker's account", Level: doctor.Bad, Found: err.Error(), Fix: "set clusters[].accounts.worker"}}
	}
	found := doctor.Worker(ctx, n.Name, db, database, mysqlconn.IsDenied)
	if err := db.Close(); err != nil {
		found = append(found, doctor.Finding{Where: n.Name, Check: "the worker's account", Level: doctor.Warn, Found: err.Error()})
	}
	return found
}

// Verify compares a datastore's entity tables with Kafka and the indexes. c
// holds what the caller wants of it (Wait, Parallel, Detail, Progress); the
// rest is filled in.
func Verify(ctx context.Context, cfg *config.Config, env Env, datastore string, c verify.Config) (_ verify.Report, err error) {
	store, err := mysql.New(mysql.Config{Clusters: Clusters(cfg, AdminAccount), Logger: env.log()})
	if err != nil {
		return verify.Report{}, err
	}
	if err := store.Start(ctx); err != nil {
		return verify.Report{}, errors.Join(err, store.Stop(ctx))
	}
	defer func() { err = errors.Join(err, store.Stop(context.WithoutCancel(ctx))) }()
	d, err := store.Datastore(datastore)
	if err != nil {
		return verify.Report{}, err
	}
	c.Datastore, c.Shards, c.Prefix, c.Merged = datastore, d.Shards, cfg.Kafka.Prefix, cfg.Datastore(datastore).MergedTopic
	c.Kafka, c.Entities = kafkaConfig(cfg, env, "cellog-verify"), tables{store}
	x := &indexChecker{cfg: cfg, datastore: datastore, store: store, config: c}
	c.Indexes = x.check
	return verify.Run(ctx, c)
}

// pageTime bounds the wait for a server that is frozen, or behind a firewall:
// one that is only busy answers a page much sooner.
var pageTime = 30 * time.Second

// tables reads entity tables on their masters.
type tables struct{ store *mysql.Store }

// Last returns the last added_id of a shard.
func (t tables) Last(ctx context.Context, datastore string, shard cellog.ShardID) (cellog.AddedID, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pageTime, errNoAnswer)
	defer cancel()
	last, err := t.store.Last(ctx, datastore, shard, cellog.Master)
	return last, told(ctx, err)
}

var errNoAnswer = errors.New("its server does not answer")

// told is err, or what is behind it when the time was up.
func told(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		return fmt.Errorf("%w within %v (%w)", errNoAnswer, pageTime, err)
	}
	return err
}

// Read reads a shard's cells in order. A damaged one is marked as
// verify.Entities says.
func (t tables) Read(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, limit int) ([]cellog.Cell, error) {
	cells, err := t.page(ctx, datastore, shard, after, upTo, limit)
	if !errors.Is(err, storage.ErrDamaged) || len(cells) > 0 {
		// Whole cells come first; the next page begins with the damaged one.
		if len(cells) > 0 && errors.Is(err, storage.ErrDamaged) {
			err = nil
		}
		return cells, err
	}
	// The error does not say which cell it is, so look: logs are dense.
	for id := after + 1; id <= upTo; id++ {
		one, err := t.page(ctx, datastore, shard, id-1, id, 1)
		if errors.Is(err, storage.ErrDamaged) {
			return []cellog.Cell{{Datastore: datastore, Shard: shard, AddedID: id}}, nil
		}
		if err != nil || len(one) > 0 {
			return one, err // it was mended meanwhile
		}
	}
	return nil, err
}

func (t tables) page(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, limit int) ([]cellog.Cell, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pageTime, errNoAnswer)
	defer cancel()
	cells, _, o, err := t.store.Log(ctx, datastore, shard, after, upTo, "", limit, cellog.Master)
	if err = told(ctx, err); err == nil && o.Stale {
		return nil, fmt.Errorf("the master does not answer, node %s may be behind", o.Node)
	}
	return cells, err
}
