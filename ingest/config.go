package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// Store is what ingest needs of storage. All methods are called from many
// goroutines.
type Store interface {
	// Shards returns the number of a datastore's shards without blocking, or
	// an error whose code says that there is none.
	Shards(datastore string) (int, error)

	// WriteNext stores cells of one shard, in their order, whose bodies are in
	// stored form. It calls take, once, when the shard's server has room for
	// them; cells gather until then. It blocks until the outcome of each is
	// known or ctx is done, and then returns: for put i, errs[i] is nil and
	// stored[i] tells the outcome, or errs[i] says that nothing was kept or, by
	// the code outcome_unknown, that the cell may be stored. It does not keep
	// puts or their bytes after it returned, and is never called twice at a
	// time for one shard.
	WriteNext(ctx context.Context, datastore string, shard cellog.ShardID, take func() []cellog.Put) (stored []cellog.Stored, errs []error)
}

// Peers knows the other workers.
type Peers interface {
	// Home returns the worker that is to write a shard's cells, nil when that
	// is this one or none is known. It must not block.
	Home(datastore string, shard cellog.ShardID) Peer
}

// Peer is another worker.
type Peer interface {
	// Write has the peer store cells, those of one shard in their order, whose
	// bodies are in stored form. Without an error the results are those of
	// Store.WriteNext, but for the shards. With one, nothing was kept if sent
	// is false, and anything may be stored if it is true.
	Write(ctx context.Context, datastore string, puts []cellog.Put) (stored []cellog.Stored, errs []error, sent bool, err error)
}

// Buffer keeps cells whose shard's primary gives no answer.
type Buffer interface {
	// Buffer makes cells of a shard, whose bodies are in stored form, durable
	// elsewhere. An error with code outcome_unknown says that some may be kept,
	// any other that nothing was.
	Buffer(ctx context.Context, datastore string, shard cellog.ShardID, puts []cellog.Put) error
}

// Config is what an Ingest needs. New works on a copy.
type Config struct {
	// Store keeps the cells. Required.
	Store Store
	// Peers are the other workers: cells of a shard that is another one's go
	// there, so that a shard's cells share transactions whatever worker the
	// clients ask. Nil: all cells are written here.
	Peers Peers
	// ForwardTimeout bounds how long another worker may take with cells
	// before they are written here after all. Default 1 s.
	ForwardTimeout time.Duration
	// Buffer keeps what the store cannot write now. Nil: such puts fail.
	Buffer Buffer
	// BufferAfter bounds one Write of the store where there is a Buffer, and
	// then the Buffer's own work. Default 1.5 s.
	BufferAfter time.Duration
	// Limits bound a body. Zero: 8 MiB of JSON, 1,000 levels.
	Limits body.Limits
	// QueueBytes bounds what all queues hold together, bodies in stored form
	// and what is in flight included. Default 256 MiB.
	QueueBytes int64
	// ShardQueueBytes bounds one shard's queue. Default 64 MiB.
	ShardQueueBytes int64
	// BatchCells bounds the cells of one transaction. Default 1,000.
	BatchCells int
	// BatchBytes bounds the stored bodies of one transaction; one cell may
	// exceed it. Default 8 MiB.
	BatchBytes int64
	// WriteTimeout bounds one Write of the store, looking up a lost answer
	// included. Default 15 s.
	WriteTimeout time.Duration
	// Registerer takes the metrics. Default: none.
	Registerer Registerer
}

func (c Config) withDefaults() Config {
	if c.QueueBytes == 0 {
		c.QueueBytes = 256 << 20
	}
	if c.ShardQueueBytes == 0 {
		c.ShardQueueBytes = 64 << 20
	}
	if c.BatchCells == 0 {
		c.BatchCells = 1000
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 8 << 20
	}
	if c.ForwardTimeout == 0 {
		c.ForwardTimeout = time.Second
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 15 * time.Second
	}
	if c.BufferAfter == 0 {
		c.BufferAfter = 1500 * time.Millisecond
	}
	return c
}

func (c Config) check() error {
	if c.Store == nil {
		return errors.New("ingest: store is missing")
	}
	for name, v := range map[string]int64{"queue_bytes": c.QueueBytes, "shard_queue_bytes": c.ShardQueueBytes,
		"batch_cells": int64(c.BatchCells), "batch_bytes": c.BatchBytes, "write_timeout": int64(c.WriteTimeout),
		"forward_timeout": int64(c.ForwardTimeout), "buffer_after": int64(c.BufferAfter)} {
		if v < 0 {
			return fmt.Errorf("ingest: %s %d: want more than zero", name, v)
		}
	}
	return nil
}
