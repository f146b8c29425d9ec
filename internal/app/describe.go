package app

import (
	"context"
	"errors"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/storage/mysql"
)

// Datastore is what the servers record about a datastore.
type Datastore struct {
	Name       string `json:"name"`
	Shards     int    `json:"shards"`
	Partitions int    `json:"partitions"`
}

// Description is a datastore with its columns and the places of its shards.
type Description struct {
	Datastore
	Columns []string `json:"columns"`
	Routes  []Shard  `json:"routes"`
}

// Shard says where a shard is and how long its log is, or why that is not
// known.
type Shard struct {
	Shard   cellog.ShardID `json:"shard"`
	Cluster string         `json:"cluster,omitempty"`
	Node    string         `json:"node,omitempty"`
	Epoch   cellog.Epoch   `json:"epoch,omitempty"`
	Cells   cellog.AddedID `json:"cells"`
	Error   string         `json:"error,omitempty"`
}

// withStore runs f with a storage that looks with the admin's account.
func withStore(ctx context.Context, cfg *config.Config, env Env, f func(*mysql.Store) error) (err error) {
	store, err := mysql.New(mysql.Config{Clusters: Clusters(cfg, AdminAccount), Logger: env.log()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Stop(context.WithoutCancel(ctx))) }()
	if err := store.Start(ctx); err != nil {
		return err
	}
	return f(store)
}

// Datastores lists what the servers record.
func Datastores(ctx context.Context, cfg *config.Config, env Env) ([]Datastore, error) {
	out := []Datastore{}
	err := withStore(ctx, cfg, env, func(s *mysql.Store) error {
		for _, d := range s.Datastores() {
			out = append(out, Datastore{d.Name, d.Shards, d.Partitions})
		}
		return nil
	})
	return out, err
}

// Describe looks at every shard of a datastore.
func Describe(ctx context.Context, cfg *config.Config, env Env, name string) (Description, error) {
	var out Description
	err := withStore(ctx, cfg, env, func(s *mysql.Store) error {
		d, err := s.Datastore(name)
		if err != nil {
			return err
		}
		out.Datastore = Datastore{d.Name, d.Shards, d.Partitions}
		for n := range d.Shards {
			sh := Shard{Shard: shardID(n)}
			r, err := s.Route(name, sh.Shard)
			if err == nil {
				sh.Cluster, sh.Node, sh.Epoch = r.Cluster, r.Node, r.Epoch
				sh.Cells, err = s.Last(ctx, name, sh.Shard, cellog.Master)
			}
			if err != nil {
				sh.Error = err.Error()
			}
			out.Routes = append(out.Routes, sh)
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	out.Columns, err = columnsOf(ctx, cfg, name)
	return out, err
}

// columnsOf joins the columns that the clusters' servers know of; a cluster
// that does not answer adds none.
func columnsOf(ctx context.Context, cfg *config.Config, datastore string) (_ []string, err error) {
	seen := map[string]bool{}
	out := []string{}
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		node, _, merr := master(ctx, c)
		if merr != nil {
			continue
		}
		if err := addColumns(ctx, c, node, datastore, seen, &out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func addColumns(ctx context.Context, c *config.Cluster, node, datastore string, seen map[string]bool, out *[]string) (err error) {
	db, err := openAdmin(c, node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, "SELECT column_name FROM cellog_meta.columns WHERE datastore = ? ORDER BY 1", datastore)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		if !seen[name] {
			seen[name] = true
			*out = append(*out, name)
		}
	}
	return rows.Err()
}
