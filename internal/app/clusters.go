package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/doctor"
	"github.com/cellog/cellog/storage/mysql"
)

// nodePatience bounds the questions to one server.
const nodePatience = 3 * time.Second

// ClusterState is a storage cluster as its servers and Kafka tell.
type ClusterState struct {
	Name string `json:"name"`
	// Term, State and Opened are of the cluster's newest record in Kafka:
	// which node was opened, in which term, or claimed. Problem says why they
	// are not known.
	Term    int         `json:"term"`
	State   string      `json:"state"`
	Opened  string      `json:"opened"`
	Problem string      `json:"problem,omitempty"`
	Nodes   []NodeState `json:"nodes"`
	// Nominated is a node that takes writes and was not opened: somebody else
	// has made it writable. A promotion prefers it.
	Nominated string `json:"nominated,omitempty"`
}

// NodeState is a server of a cluster.
type NodeState struct {
	Name string `json:"name"`
	Addr string `json:"addr"`
	// Role is master, minion (read-only, and replicating), spare (read-only,
	// and not) or nominated (writable, but not the one that was opened); unknown
	// where Problem says why.
	Role    string `json:"role"`
	Version string `json:"version,omitempty"`
	Problem string `json:"problem,omitempty"`
	// Shards are those that it has, Open those of them that are open on a
	// master.
	Shards int `json:"shards"`
	Open   int `json:"open"`
	// LagSeconds is the age of the newest heartbeat that it has; nil if it has
	// none.
	LagSeconds *float64 `json:"lag_seconds"`
	// Buffered are the copies that it holds of other clusters' cells.
	Buffered int `json:"buffered"`
}

// ClusterStates looks at all clusters, or at the one named.
func ClusterStates(ctx context.Context, cfg *config.Config, env Env, name string) ([]ClusterState, error) {
	var clusters []*config.Cluster
	if name != "" {
		c, err := cfg.FindCluster(name)
		if err != nil {
			return nil, err
		}
		clusters = append(clusters, c)
	} else {
		for i := range cfg.Clusters {
			clusters = append(clusters, &cfg.Clusters[i])
		}
	}
	var g errgroup.Group
	out := make([]ClusterState, len(clusters))
	for i, c := range clusters {
		out[i] = ClusterState{Name: c.Name, Nodes: make([]NodeState, len(c.Nodes))}
		s := &out[i]
		g.Go(func() error { s.stream(ctx, cfg, env); return nil })
		for j, n := range c.Nodes {
			g.Go(func() error { s.Nodes[j] = nodeState(ctx, c, n); return nil })
		}
	}
	err := g.Wait()
	for i := range out {
		for j := range out[i].Nodes {
			if n := &out[i].Nodes[j]; n.Role == "master" && out[i].Opened != "" && n.Name != out[i].Opened {
				n.Role, out[i].Nominated = "nominated", n.Name
			}
		}
	}
	return out, err
}

// stream reads what Kafka says of the cluster.
func (s *ClusterState) stream(ctx context.Context, cfg *config.Config, env Env) {
	ctx, cancel := context.WithTimeout(ctx, 2*nodePatience)
	defer cancel()
	err := func() error {
		p, err := publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "cellog-cluster"), Cluster: s.Name, Prefix: cfg.Kafka.Prefix, Logger: env.log()})
		if err != nil {
			return err
		}
		defer p.Close()
		pos, err := p.Positions(ctx)
		if err != nil {
			return err
		}
		if pos.Cluster == nil {
			return fmt.Errorf("no node was opened yet: `cellog datastore create` opens the first")
		}
		s.Term, s.State, s.Opened = int(pos.Cluster.Term), pos.Cluster.State, pos.Cluster.Node
		return nil
	}()
	if err != nil {
		s.Problem = err.Error()
	}
}

// nodeState asks one server.
func nodeState(ctx context.Context, c *config.Cluster, n config.Node) (s NodeState) {
	s = NodeState{Name: n.Name, Addr: n.Addr, Role: "unknown"}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	err := func() (err error) {
		db, err := openAdmin(c, n.Name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		found, seen := doctor.MySQL(ctx, doctor.Node{Cluster: c.Name, Name: n.Name, DB: db})
		if !seen.Reached {
			if ctx.Err() != nil {
				return fmt.Errorf("it does not answer within %v", nodePatience)
			}
			return errors.New(found[0].Found)
		}
		s.Version = seen.Version
		switch {
		case seen.Writable:
			s.Role = "master"
		case seen.Source != "":
			s.Role = "minion"
		default:
			s.Role = "spare"
		}
		return s.contents(ctx, db, c.Name)
	}()
	if err != nil {
		s.Problem = err.Error()
	}
	return s
}

// contents counts what a server has.
func (s *NodeState) contents(ctx context.Context, db *sql.DB, cluster string) error {
	heads, err := mysql.Heads(ctx, db)
	if err != nil {
		return err
	}
	s.Shards = len(heads)
	for _, h := range heads {
		if s.Role == "master" && h.Open() {
			s.Open++
		}
	}
	var written sql.NullTime
	if err := db.QueryRowContext(ctx, "SELECT MAX(written_at) FROM cellog_meta.heartbeats WHERE cluster = ?", cluster).Scan(&written); err != nil {
		return err
	}
	if written.Valid {
		lag := max(time.Since(written.Time).Seconds(), 0)
		s.LagSeconds = &lag
	}
	s.Buffered, err = mysql.CountCopies(ctx, db)
	return err
}
