package app

import (
	"database/sql"
	"errors"
	"log/slog"

	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/storage"
)

// Env is what a role gets from its process.
type Env struct {
	// Log receives what an operator should know; nil discards it.
	Log *slog.Logger
	// Registry takes the metrics; nil: there are none.
	Registry obs.Registerer
}

func (e Env) log() *slog.Logger {
	if e.Log == nil {
		return obs.Discard()
	}
	return e.Log
}

func kafkaConfig(cfg *config.Config, env Env, id string) kafka.Config {
	return kafka.Config{Addrs: cfg.Kafka.Brokers, ClientID: id, Logger: env.log()}
}

// account chooses one of a cluster's accounts.
type account func(config.Accounts) config.Account

func workerAccount(a config.Accounts) config.Account  { return a.Worker }
func tailerAccount(a config.Accounts) config.Account  { return a.Tailer }
func indexerAccount(a config.Accounts) config.Account { return a.Indexer }

// AdminAccount is the account that makes databases and inspects servers.
func AdminAccount(a config.Accounts) config.Account { return a.Admin }

// WorkerAccount is the account that reads and writes cells.
func WorkerAccount(a config.Accounts) config.Account { return a.Worker }

// Clusters gives the storage stage its clusters, with the account that pick
// chooses.
func Clusters(cfg *config.Config, pick func(config.Accounts) config.Account) []storage.Cluster {
	out := make([]storage.Cluster, len(cfg.Clusters))
	for i, c := range cfg.Clusters {
		a := pick(c.Accounts)
		out[i].Name = c.Name
		for _, n := range c.Nodes {
			out[i].Nodes = append(out[i].Nodes, storage.Node{Name: n.Name, Addr: n.Addr, User: a.User, Password: a.Password.Reveal()})
		}
	}
	return out
}

// nodeKey names a server.
type nodeKey struct{ cluster, node string }

// pools are connection pools to all configured servers, one each.
type pools struct {
	byNode map[nodeKey]*sql.DB
}

func openPools(cfg *config.Config, pick account, base mysqlconn.Config) (*pools, error) {
	p := &pools{byNode: map[nodeKey]*sql.DB{}}
	for _, c := range cfg.Clusters {
		a := pick(c.Accounts)
		for _, n := range c.Nodes {
			m := base
			m.Addr, m.User, m.Password = n.Addr, a.User, a.Password.Reveal()
			db, err := mysqlconn.Open(m)
			if err != nil {
				return nil, errors.Join(err, p.close())
			}
			p.byNode[nodeKey{c.Name, n.Name}] = db
		}
	}
	return p, nil
}

func (p *pools) close() error {
	var errs []error
	for _, db := range p.byNode {
		errs = append(errs, mysqlconn.Close(db))
	}
	return errors.Join(errs...)
}

func (p *pools) get(cluster, node string) *sql.DB { return p.byNode[nodeKey{cluster, node}] }
