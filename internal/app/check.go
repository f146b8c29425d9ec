package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

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
