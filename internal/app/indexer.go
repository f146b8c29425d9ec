package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/indexer/table"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/storage/mysql"
)

// Indexer keeps the index tables in step with the stream.
type Indexer struct {
	store   *mysql.Store
	places  *places
	indexer *indexer.Indexer
	indexes []*indexer.Index
	maxLag  time.Duration
	failed  chan error

	mu      sync.Mutex
	cancel  context.CancelFunc
	done    chan struct{}
	since   time.Time // its start
	ended   error     // why the indexer stopped by itself
	stopped bool
}

// NewIndexer builds an indexer of the definitions in cfg.Indexer.Schemas;
// Start runs it. Without definitions it has nothing to do, which is no error.
func NewIndexer(cfg *config.Config, env Env) (*Indexer, error) {
	x := &Indexer{maxLag: cfg.Admin.MaxLag, failed: make(chan error, 1)}
	if cfg.Indexer.Schemas == "" {
		return x, nil
	}
	var err error
	if x.indexes, err = indexer.Load(cfg.Indexer.Schemas); err != nil {
		return nil, err
	}
	// The routes are this role's own: in one process with a worker, the
	// metrics of storage are the worker's.
	if x.store, err = mysql.New(mysql.Config{Clusters: Clusters(cfg, indexerAccount), Writers: 1, Readers: 2, Logger: env.log()}); err != nil {
		return nil, err
	}
	if x.places, err = newPlaces(cfg, indexerAccount, x.store); err != nil {
		return nil, err
	}
	tables, err := table.New(table.Config{Places: x.places})
	if err != nil {
		return nil, errors.Join(err, x.places.close())
	}
	x.indexer, err = indexer.New(indexer.Config{
		Kafka: kafkaConfig(cfg, env, "cellog-indexer"), TopicPrefix: cfg.Kafka.Prefix, Tables: tables, Indexes: x.indexes,
		Logger: env.log(), Registerer: env.Registry,
	})
	if err != nil {
		return nil, errors.Join(err, x.places.close())
	}
	return x, nil
}

// Indexes are the indexes that it feeds.
func (x *Indexer) Indexes() []*indexer.Index { return x.indexes }

// Start finds the shards and runs the indexer in the background.
func (x *Indexer) Start(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.stopped:
		return errors.New("indexer: it was stopped; make a new one")
	case x.cancel != nil || x.indexer == nil:
		return nil
	}
	if err := x.store.Start(ctx); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	x.cancel, x.done, x.since = cancel, make(chan struct{}), time.Now()
	go func() {
		defer close(x.done)
		if err := x.indexer.Run(run); err != nil && run.Err() == nil {
			x.mu.Lock()
			x.ended = err
			x.mu.Unlock()
			x.failed <- fmt.Errorf("indexer: %w", err)
		}
	}()
	return nil
}

// Failed gets the error with which the indexer ended by itself.
func (x *Indexer) Failed() <-chan error { return x.failed }

// Stop finishes the batch in hand and ends the indexer.
func (x *Indexer) Stop(ctx context.Context) error {
	x.mu.Lock()
	cancel, done, again := x.cancel, x.done, x.stopped
	x.stopped = true
	x.mu.Unlock()
	if again || x.indexer == nil {
		return nil
	}
	var err error
	if cancel != nil {
		cancel()
		select {
		case <-done:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return errors.Join(err, x.store.Stop(ctx), x.places.close())
}

// Ready returns nil while all indexes go on and none is further behind than
// the configured lag.
func (x *Indexer) Ready(context.Context) error {
	if x.indexer == nil {
		return nil
	}
	x.mu.Lock()
	running, ended, since := x.cancel != nil && !x.stopped, x.ended, x.since
	x.mu.Unlock()
	if ended != nil {
		return ended
	}
	if !running {
		return errors.New("the indexer is not running")
	}
	if err := x.indexer.Err(); err != nil {
		return err
	}
	lags := x.indexer.Lag()
	if long := time.Since(since); len(lags) == 0 && long > x.maxLag {
		return fmt.Errorf("no heartbeat has come through Kafka since the start %v ago (is the broker up, and a tailer running?)", long.Round(time.Second))
	}
	for name, lag := range lags {
		if lag > x.maxLag {
			return fmt.Errorf("the index %s is %v behind", name, lag.Round(time.Millisecond))
		}
	}
	return nil
}
