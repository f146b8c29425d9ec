package app

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/indexer/table"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// ShardState is a shard as the servers and Kafka tell.
type ShardState struct {
	Datastore string         `json:"datastore"`
	Shard     cellog.ShardID `json:"shard"`
	// Cluster owns it, Node is that cluster's opened node.
	Cluster string       `json:"cluster"`
	Node    string       `json:"node"`
	Epoch   cellog.Epoch `json:"epoch"`
	// State is the one of its shard_log there: open, closed (a promotion goes
	// on), moving:CLUSTER or arriving (a move does).
	State string `json:"state"`
	// Stored is the last added_id there, Final the last one in Kafka, Behind
	// the difference.
	Stored cellog.AddedID `json:"stored"`
	Final  cellog.AddedID `json:"final"`
	Behind cellog.AddedID `json:"behind"`
	// Problem says why something above is not known.
	Problem string `json:"problem,omitempty"`

	// What follows is told by describe alone.
	Copies   []ShardCopy     `json:"copies,omitempty"`
	Indexes  []string        `json:"indexes,omitempty"`
	Position *ShardPositions `json:"position,omitempty"`
}

// ShardCopy is what a server has of a shard.
type ShardCopy struct {
	Cluster string         `json:"cluster"`
	Node    string         `json:"node"`
	State   string         `json:"state"`
	Epoch   cellog.Epoch   `json:"epoch"`
	Term    cellog.Term    `json:"term"`
	Last    cellog.AddedID `json:"last"`
	Problem string         `json:"problem,omitempty"`
}

// ShardPositions is the record of a shard that counts, and in which topic it is.
type ShardPositions struct {
	Topic  string         `json:"topic"`
	Record position.Shard `json:"record"`
}

// view is what all servers and Kafka said.
type view struct {
	positions  map[string]cdc.Positions
	datastores map[string]storage.Datastore
	nodes      []nodeView
	problem    error // Kafka's
	servers    error // theirs, where none answered
}

type nodeView struct {
	cluster, node string
	heads         map[cdc.ShardKey]mysql.ShardHead
	err           error
}

// seen asks every server and Kafka.
func seen(ctx context.Context, cfg *config.Config, env Env) (*view, error) {
	v := &view{datastores: map[string]storage.Datastore{}}
	var mu sync.Mutex
	var g errgroup.Group
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		for _, n := range c.Nodes {
			g.Go(func() error {
				nv, ds := lookAt(ctx, c, n.Name)
				mu.Lock()
				defer mu.Unlock()
				v.nodes = append(v.nodes, nv)
				for _, d := range ds {
					v.datastores[d.Name] = d
				}
				return nil
			})
		}
	}
	g.Go(func() error { v.positions, v.problem = everywhere(ctx, cfg, env); return nil })
	_ = g.Wait() // no function returns an error
	slices.SortFunc(v.nodes, func(a, b nodeView) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.node, b.node))
	})
	if len(v.datastores) == 0 {
		var errs []error
		for _, n := range v.nodes {
			errs = append(errs, n.err)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func everywhere(ctx context.Context, cfg *config.Config, env Env) (map[string]cdc.Positions, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*nodePatience)
	defer cancel()
	p, err := publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "cellog-shard"), Cluster: cfg.Clusters[0].Name, Prefix: cfg.Kafka.Prefix, Logger: env.log()})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Everywhere(ctx)
}

func lookAt(ctx context.Context, c *config.Cluster, node string) (v nodeView, ds []storage.Datastore) {
	v = nodeView{cluster: c.Name, node: node, heads: map[cdc.ShardKey]mysql.ShardHead{}}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	v.err = func() (err error) {
		db, err := openAdmin(c, node)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
		heads, err := mysql.Heads(ctx, db)
		if err != nil {
			return err
		}
		for _, h := range heads {
			v.heads[cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}] = h
		}
		ds, err = mysql.DatastoresOf(ctx, db)
		return err
	}()
	if v.err != nil {
		v.err = fmt.Errorf("node %s/%s: %w", c.Name, node, v.err)
	}
	return v, ds
}

// shard tells of one shard.
func (v *view) shard(k cdc.ShardKey) ShardState {
	s := ShardState{Datastore: k.Datastore, Shard: k.Shard}
	record, in := publish.Newest(v.positions, k)
	s.Cluster, s.Epoch, s.Final = record.Owner, record.Epoch, record.Last
	if in == "" { // nothing of it was published yet
		var highest cellog.Epoch
		for _, n := range v.nodes {
			if h, ok := n.heads[k]; ok && !h.Foreign() && h.Epoch > highest {
				s.Cluster, highest = n.cluster, h.Epoch
			}
		}
	}
	if c := v.positions[s.Cluster].Cluster; c != nil {
		s.Node = c.Node
	}
	for _, n := range v.nodes {
		if n.cluster != s.Cluster || n.node != s.Node {
			continue
		}
		h, ok := n.heads[k]
		switch {
		case n.err != nil:
			s.Problem = n.err.Error()
		case !ok:
			s.Problem = fmt.Sprintf("node %s does not have it", n.node)
		default:
			s.State, s.Stored, s.Epoch = h.Word(), h.Last, max(s.Epoch, h.Epoch)
			s.Behind = max(s.Stored-s.Final, 0)
		}
	}
	switch {
	case v.problem != nil:
		s.Problem = "positions: " + v.problem.Error()
	case s.Problem == "" && s.State == "":
		s.Problem = "no node of a cluster that owns it was opened"
	}
	return s
}

// ShardStates tells of the shards of a datastore, or of all; name may be empty.
func ShardStates(ctx context.Context, cfg *config.Config, env Env, name string) ([]ShardState, error) {
	v, err := seen(ctx, cfg, env)
	if err != nil {
		return nil, err
	}
	if _, ok := v.datastores[name]; !ok && name != "" {
		return nil, fmt.Errorf("datastore %q: %w", name, storage.ErrUnknownDatastore)
	}
	out := []ShardState{}
	for _, d := range v.datastores {
		for n := range d.Shards {
			if name == "" || d.Name == name {
				out = append(out, v.shard(cdc.ShardKey{Datastore: d.Name, Shard: shardID(n)}))
			}
		}
	}
	slices.SortFunc(out, func(a, b ShardState) int {
		return cmp.Or(cmp.Compare(a.Datastore, b.Datastore), cmp.Compare(a.Shard, b.Shard))
	})
	return out, nil
}

// DescribeShard tells all of one shard.
func DescribeShard(ctx context.Context, cfg *config.Config, env Env, datastore string, shard cellog.ShardID) (ShardState, error) {
	v, err := seen(ctx, cfg, env)
	if err != nil {
		return ShardState{}, err
	}
	d, ok := v.datastores[datastore]
	switch {
	case !ok:
		return ShardState{}, fmt.Errorf("datastore %q: %w", datastore, storage.ErrUnknownDatastore)
	case shard < 0 || int(shard) >= d.Shards:
		return ShardState{}, fmt.Errorf("datastore %q, shard %d of %d: %w", datastore, shard, d.Shards, storage.ErrUnknownShard)
	}
	k := cdc.ShardKey{Datastore: datastore, Shard: shard}
	s := v.shard(k)
	if record, in := publish.Newest(v.positions, k); in != "" {
		s.Position = &ShardPositions{Topic: cellog.PositionsTopicName(cfg.Kafka.Prefix, in), Record: record}
	}
	for _, n := range v.nodes {
		h, ok := n.heads[k]
		if !ok && n.err == nil {
			continue
		}
		c := ShardCopy{Cluster: n.cluster, Node: n.node, State: h.Word(), Epoch: h.Epoch, Term: h.Term, Last: h.Last}
		if n.err != nil {
			c.Problem = n.err.Error()
		}
		s.Copies = append(s.Copies, c)
	}
	if s.Problem == "" {
		s.Indexes, err = indexTables(ctx, cfg, s)
	}
	return s, err
}

func indexTables(ctx context.Context, cfg *config.Config, s ShardState) (names []string, err error) {
	db, err := openAdmin(cfg.Cluster(s.Cluster), s.Node)
	if err != nil {
		return nil, err
	}
	defer func(db *sql.DB) { err = errors.Join(err, mysqlconn.Close(db)) }(db)
	return table.OfShard(ctx, db, s.Datastore, s.Shard)
}
