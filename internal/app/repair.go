package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// RepairShard publishes from a shard's entity table what its topics lost, and
// puts its position right; see publish.Publisher.Repair. The cluster's tailer
// must be stopped. It reads from the cluster's nodes, minions first, and
// returns how many cells it published, by topic.
func RepairShard(ctx context.Context, cfg *config.Config, env Env, cluster, datastore string, shard cellog.ShardID) (done map[string]int, err error) {
	c, err := cfg.FindCluster(cluster)
	if err != nil {
		return nil, err
	}
	p, err := openPools(cfg, tailerAccount, mysqlconn.Config{MaxOpen: 2, ReadTimeout: time.Minute, Session: map[string]string{"time_zone": "'+00:00'"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	pub, err := publish.New(publish.Config{
		Kafka: kafkaConfig(cfg, env, "cellog-repair-"+c.Name), Cluster: c.Name, Prefix: cfg.Kafka.Prefix,
		Logger: env.log(),
	})
	if err != nil {
		return nil, err
	}
	defer pub.Close()
	nodes, err := (&servers{cluster: c, pools: p}).nodes(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, n := range nodes {
		done, err := repairFrom(ctx, cfg, pub, n, datastore, shard)
		if err == nil || ctx.Err() != nil {
			return done, err
		}
		errs = append(errs, fmt.Errorf("from node %s: %w", n.Name, err))
	}
	return nil, errors.Join(errs...)
}

func repairFrom(ctx context.Context, cfg *config.Config, pub *publish.Publisher, n cdc.Node, datastore string, shard cellog.ShardID) (map[string]int, error) {
	shards, partitions, ok, err := n.Entities.Datastore(ctx, datastore)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("there is no datastore %q", datastore)
	case shard < 0 || int(shard) >= shards:
		return nil, fmt.Errorf("shard %d: datastore %s has the shards 0 to %d", shard, datastore, shards-1)
	}
	options := cfg.Datastore(datastore)
	ds := &cdc.Datastore{Name: datastore, Shards: shards, Partitions: partitions, Merged: options.MergedTopic, Values: options.Values}
	return pub.Repair(ctx, ds, shard, n.Entities)
}
