package app

import (
	"context"
	"testing"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/config"
)

// Whoever takes the name of a cluster or a node says which ones there are, before
// it asks any server.
func TestUnknownNames(t *testing.T) {
	cfg := config.Default()
	cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
	account := config.Account{User: "u"}
	for _, c := range []string{"c1", "c2"} {
		cfg.Clusters = append(cfg.Clusters, config.Cluster{Name: c, Nodes: []config.Node{{Name: c + "a", Addr: "127.0.0.1:1"}, {Name: c + "b", Addr: "127.0.0.1:2"}},
			Accounts: config.Accounts{Worker: account, Tailer: account, Indexer: account, Replica: account, Admin: account}})
	}
	const noCluster, noNode = `no cluster "c9" in the configuration: want one of c1, c2`, `no node "c2a" in cluster c1: want one of c1a, c1b`
	tests := []struct {
		name, want string
		call       func(context.Context) error
	}{
		{"promote", noCluster, func(ctx context.Context) error {
			_, err := PromoteCluster(ctx, &cfg, Env{}, Promote{Cluster: "c9"})
			return err
		}},
		{"promote --to", "--to: " + noNode, func(ctx context.Context) error {
			_, err := PromoteCluster(ctx, &cfg, Env{}, Promote{Cluster: "c1", Node: "c2a"})
			return err
		}},
		{"promote --without", "--without: " + noCluster, func(ctx context.Context) error {
			_, err := PromoteCluster(ctx, &cfg, Env{}, Promote{Cluster: "c1", Without: []string{"c2", "c9"}})
			return err
		}},
		{"rejoin", noCluster, func(ctx context.Context) error {
			_, err := RejoinNode(ctx, &cfg, Env{}, Rejoin{Cluster: "c9", Node: "c1a"})
			return err
		}},
		{"rejoin, the node", noNode, func(ctx context.Context) error {
			_, err := RejoinNode(ctx, &cfg, Env{}, Rejoin{Cluster: "c1", Node: "c2a"})
			return err
		}},
		{"list", noCluster, func(ctx context.Context) error {
			_, err := ClusterStates(ctx, &cfg, Env{}, "c9")
			return err
		}},
		{"describe", noCluster, func(ctx context.Context) error {
			_, err := DescribeCluster(ctx, &cfg, Env{}, "c9")
			return err
		}},
		{"tail status", noCluster, func(ctx context.Context) error {
			_, err := TailStatuses(ctx, &cfg, Env{}, []string{"c1", "c9"})
			return err
		}},
		{"tail explain", noCluster, func(ctx context.Context) error {
			_, err := ExplainTail(ctx, &cfg, Env{}, "c9", "", 0)
			return err
		}},
		{"tail pause", noCluster, func(ctx context.Context) error {
			_, _, err := SetPause(ctx, &cfg, "c9", cdc.Pause{Paused: true})
			return err
		}},
		{"tailer repair", noCluster, func(ctx context.Context) error {
			_, err := RepairShard(ctx, &cfg, Env{}, "c9", "trips", 0)
			return err
		}},
		{"shard move", "--to: " + noCluster, func(ctx context.Context) error {
			_, err := MoveShard(ctx, &cfg, Env{}, Move{Datastore: "trips", To: "c9"})
			return err
		}},
	}
	for _, tc := range tests {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := tc.call(ctx); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
		cancel()
	}
}
