package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage/mysql"
)

// ClusterDescription is all that is known of a storage cluster.
type ClusterDescription struct {
	ClusterState
	// Position is the cluster's record in Kafka; nil where it is not known.
	Position *position.Cluster `json:"position"`
	// Details are of its nodes, by name.
	Details map[string]NodeDetail `json:"details"`
	// Owned is how many shards of each datastore it owns.
	Owned map[string]int `json:"owned"`
	// Copies are the copies of its cells that other clusters' masters hold.
	Copies []HeldCopies `json:"copies"`
}

// NodeDetail is what a node says besides its NodeState.
type NodeDetail struct {
	GTIDs   string             `json:"gtids"`
	Terms   []mysql.TermRecord `json:"terms"`
	Problem string             `json:"problem,omitempty"`
}

// HeldCopies are copies on one master.
type HeldCopies struct {
	Cluster    string `json:"cluster"`
	Node       string `json:"node"`
	Numbered   int    `json:"numbered"`
	Unnumbered int    `json:"unnumbered"`
	Problem    string `json:"problem,omitempty"`
}

// DescribeCluster tells all of one cluster.
func DescribeCluster(ctx context.Context, cfg *config.Config, env Env, name string) (ClusterDescription, error) {
	states, err := ClusterStates(ctx, cfg, env, name)
	if err != nil {
		return ClusterDescription{}, err
	}
	d := ClusterDescription{ClusterState: states[0], Details: map[string]NodeDetail{}, Owned: map[string]int{}, Copies: []HeldCopies{}}
	shards, err := ShardStates(ctx, cfg, env, "")
	if err != nil {
		return d, err
	}
	for _, s := range shards {
		if s.Cluster == name {
			d.Owned[s.Datastore]++
		}
	}
	all, err := opened(ctx, cfg, env)
	if err != nil {
		return d, err
	}
	if c, ok := all[name]; ok {
		d.Position = &c
	}
	var g errgroup.Group
	nodes := cfg.Cluster(name).Nodes
	details := make([]NodeDetail, len(nodes))
	for i, n := range nodes {
		g.Go(func() error { details[i] = nodeDetail(ctx, cfg.Cluster(name), n.Name); return nil })
	}
	_ = g.Wait() // no function returns an error
	for i, n := range nodes {
		d.Details[n.Name] = details[i]
	}
	for other, c := range all {
		if other != name {
			d.Copies = append(d.Copies, heldCopies(ctx, cfg, other, c, name))
		}
	}
	slices.SortFunc(d.Copies, func(a, b HeldCopies) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return d, nil
}

func nodeDetail(ctx context.Context, c *config.Cluster, node string) (d NodeDetail) {
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	err := func() (err error) {
		db, err := openAdmin(c, node)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
		if d.GTIDs, err = mysqlreplica.GTIDs(ctx, db); err != nil {
			return err
		}
		d.Terms, err = mysql.Terms(ctx, db)
		return err
	}()
	if err != nil {
		d.Problem = err.Error()
	}
	return d
}

func heldCopies(ctx context.Context, cfg *config.Config, holder string, c position.Cluster, of string) (h HeldCopies) {
	h = HeldCopies{Cluster: holder, Node: c.Node}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	err := func() (err error) {
		db, err := openAdmin(cfg.Cluster(holder), c.Node)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
		h.Numbered, h.Unnumbered, err = mysql.CopiesOf(ctx, db, of)
		return err
	}()
	if err != nil {
		h.Problem = err.Error()
	}
	return h
}

// ParseShard reads a shard's number, or the name of its database.
func ParseShard(datastore, text string) (cellog.ShardID, error) {
	if ds, shard, ok := cellog.ParseDatabaseName(text); ok && ds == datastore {
		return shard, nil
	}
	var n int
	if _, err := fmt.Sscanf(text, "%d", &n); err != nil || fmt.Sprint(n) != text || n < 0 {
		return 0, fmt.Errorf("shard %q: want its number, 0 or more", text)
	}
	return cellog.ShardID(n), nil
}
