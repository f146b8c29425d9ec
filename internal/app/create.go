package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/storage/mysql"
)

// Create says which datastore to make.
type Create struct {
	Name   string
	Shards int
	// Partitions of its topics; zero means as many as shards up to 256.
	Partitions int
	// Grant gives the worker's, the tailer's and the indexer's accounts what
	// they need on each new database. The accounts must exist, for any host.
	Grant bool
	// Progress is told of shards done; nil means nobody listens.
	Progress func(done, shards int)
}

// CreateDatastore makes a datastore's databases on all clusters, and writes
// the first open positions of clusters that have none yet. Running it again
// finishes what was interrupted.
func CreateDatastore(ctx context.Context, cfg *config.Config, env Env, c Create) error {
	m := mysql.CreateConfig{Name: c.Name, Shards: c.Shards, Partitions: c.Partitions, Clusters: Clusters(cfg, AdminAccount), Progress: c.Progress}
	if err := mysql.CreateDatastore(ctx, m); err != nil {
		return err
	}
	if c.Grant {
		for i := range cfg.Clusters {
			if err := grant(ctx, cfg, i, c); err != nil {
				return fmt.Errorf("grants on cluster %s: %w", cfg.Clusters[i].Name, err)
			}
		}
	}
	return WriteFirstOpen(ctx, cfg, env)
}

// WriteFirstOpen writes {open, term 1, node} for every cluster that has no
// positions yet; the node is the cluster's writable one. Then it tells each
// cluster's node the terms of all.
func WriteFirstOpen(ctx context.Context, cfg *config.Config, env Env) error {
	for i := range cfg.Clusters {
		if err := firstOpen(ctx, cfg, &cfg.Clusters[i], env); err != nil {
			return fmt.Errorf("first open of cluster %s: %w", cfg.Clusters[i].Name, err)
		}
	}
	for i := range cfg.Clusters {
		if err := LoadTerms(ctx, cfg, env, cfg.Clusters[i].Name); err != nil {
			return fmt.Errorf("terms of cluster %s: %w", cfg.Clusters[i].Name, err)
		}
	}
	return nil
}

func firstOpen(ctx context.Context, cfg *config.Config, c *config.Cluster, env Env) error {
	node, id, err := master(ctx, c)
	if err != nil {
		return err
	}
	p, err := publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "cellog-create"), Cluster: c.Name, Prefix: cfg.Kafka.Prefix, Logger: env.log()})
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.WriteFirstOpen(ctx, node, id)
	return err
}

// master finds a cluster's writable node and what names that server for good.
func master(ctx context.Context, c *config.Cluster) (node, id string, err error) {
	a := AdminAccount(c.Accounts)
	var errs []error
	for _, n := range c.Nodes {
		s, err := identity(ctx, mysqlconn.Config{Addr: n.Addr, User: a.User, Password: a.Password.Reveal(), MaxOpen: 1})
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
		case !s.ReadOnly:
			return n.Name, s.ID, nil
		}
	}
	return "", "", errors.Join(append(errs, errors.New("no node is writable"))...)
}

// identity asks a server what it is.
func identity(ctx context.Context, cfg mysqlconn.Config) (s mysqlreplica.Server, err error) {
	db, err := mysqlconn.Open(cfg)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
	return mysqlreplica.Identity(ctx, db)
}

// grant gives the working accounts their rights on the shards that cluster i
// got.
func grant(ctx context.Context, cfg *config.Config, i int, c Create) (err error) {
	cl := &cfg.Clusters[i]
	node, _, err := master(ctx, cl)
	if err != nil {
		return err
	}
	db, err := openAdmin(cl, node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var shards []cellog.ShardID
	for n := i; n < c.Shards; n += len(cfg.Clusters) {
		shards = append(shards, cellog.ShardID(n))
	}
	return mysqlaccounts.GrantDatastore(ctx, db, working(cl.Accounts), c.Name, shards)
}

// working are the accounts that get rights on shards.
func working(a config.Accounts) mysqlaccounts.Set {
	return mysqlaccounts.Set{
		Worker: mysqlaccounts.Account{User: a.Worker.User}, Tailer: mysqlaccounts.Account{User: a.Tailer.User}, Indexer: mysqlaccounts.Account{User: a.Indexer.User},
	}
}

func openAdmin(c *config.Cluster, node string) (*sql.DB, error) {
	m, err := adminConn(c, node)
	if err != nil {
		return nil, err
	}
	m.MaxOpen = 4
	return mysqlconn.Open(m)
}

// adminConn is how a node is reached with the admin account.
func adminConn(c *config.Cluster, node string) (mysqlconn.Config, error) {
	n, err := c.FindNode(node)
	if err != nil {
		return mysqlconn.Config{}, err
	}
	a := AdminAccount(c.Accounts)
	return mysqlconn.Config{Addr: n.Addr, User: a.User, Password: a.Password.Reveal(), KeepReadOnly: true}, nil
}
