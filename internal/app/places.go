package app

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// router says where shards are; storage/mysql does.
type router interface {
	Shards(datastore string) (int, error)
	Route(datastore string, shard cellog.ShardID) (storage.Route, error)
}

// places gives index tables their servers, by the routes of storage.
type places struct {
	router router
	pools  *pools
	nodes  map[string][]string // by cluster
}

func shardID(n int) cellog.ShardID { return cellog.ShardID(n) }

func newPlaces(cfg *config.Config, pick account, r router) (*places, error) {
	db, err := openPools(cfg, pick, mysqlconn.Config{MultiStatements: true, MaxOpen: 16, ReadTimeout: time.Minute, Session: map[string]string{
		// A frozen indexer holds the locks of a batch for this long, not for eight hours.
		"time_zone": "'+00:00'", "wait_timeout": "10", "innodb_lock_wait_timeout": "5",
	}})
	if err != nil {
		return nil, err
	}
	p := &places{router: r, pools: db, nodes: map[string][]string{}}
	for _, c := range cfg.Clusters {
		for _, n := range c.Nodes {
			p.nodes[c.Name] = append(p.nodes[c.Name], n.Name)
		}
	}
	return p, nil
}

func (p *places) close() error { return p.pools.close() }

// Shards returns a datastore's number of shards.
func (p *places) Shards(_ context.Context, datastore string) (int, error) {
	return p.router.Shards(datastore)
}

// ShardDB returns the server on which the shard is open, and its epoch there.
func (p *places) ShardDB(_ context.Context, datastore string, shard cellog.ShardID) (*sql.DB, cellog.Epoch, error) {
	r, err := p.router.Route(datastore, shard)
	if err != nil {
		return nil, 0, err
	}
	db := p.pools.get(r.Cluster, r.Node)
	if db == nil {
		return nil, 0, fmt.Errorf("%v: no such node is configured: %w", r, storage.ErrUnavailable)
	}
	return db, r.Epoch, nil
}

// ReadDB returns a server to read the shard from: its master, or a minion of
// the same cluster where one is asked for and there is one.
func (p *places) ReadDB(_ context.Context, datastore string, shard cellog.ShardID, from cellog.ReadFrom) (*sql.DB, cellog.Origin, error) {
	r, err := p.router.Route(datastore, shard)
	if err != nil {
		return nil, cellog.Origin{}, err
	}
	node, o := r.Node, cellog.Origin{From: cellog.Master, Node: r.Node}
	if from == cellog.Minion {
		for _, n := range p.nodes[r.Cluster] {
			if n != r.Node {
				node, o = n, cellog.Origin{From: cellog.Minion, Node: n}
				break
			}
		}
	}
	db := p.pools.get(r.Cluster, node)
	if db == nil {
		return nil, o, fmt.Errorf("%v: no such node is configured: %w", r, storage.ErrUnavailable)
	}
	return db, o, nil
}
