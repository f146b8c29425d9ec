package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/schemas/body"
)

// Store is what the API reads from. Cells come with their Body in stored form.
// Methods are called from many goroutines, block until they have an answer or
// ctx is done, and return errors with codes.
type Store interface {
	Shards(datastore string) (int, error)
	Newest(ctx context.Context, datastore string, row uuid.UUID, column string, from cellog.ReadFrom) (cellog.Cell, cellog.Origin, error)
	Version(ctx context.Context, datastore string, key cellog.Key, from cellog.ReadFrom) (cellog.Cell, cellog.Origin, error)
	// Row pages through the newest cell of each column, by column name after
	// the given one; more says that there are further ones.
	Row(ctx context.Context, datastore string, row uuid.UUID, after string, limit int, from cellog.ReadFrom) (cells []cellog.Cell, more bool, o cellog.Origin, err error)
	// Versions pages through all cells of a row from start on, included, by
	// column name, then ref_key.
	Versions(ctx context.Context, datastore string, start cellog.Key, limit int, from cellog.ReadFrom) (cells []cellog.Cell, more bool, o cellog.Origin, err error)
	// History pages through a column of a row from start on, included.
	History(ctx context.Context, datastore string, start cellog.Key, limit int, from cellog.ReadFrom) (cells []cellog.Cell, more bool, o cellog.Origin, err error)
	// Get answers many gets: errs[i] is nil or says why there is no cell i.
	Get(ctx context.Context, datastore string, gets []cellog.Get, maxBytes int, from cellog.ReadFrom) (cells []cellog.Cell, errs []error, o cellog.Origin, err error)
	// Log pages through after < added_id <= upTo.
	Log(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, column string, limit int, from cellog.ReadFrom) (cells []cellog.Cell, more bool, o cellog.Origin, err error)
	Last(ctx context.Context, datastore string, shard cellog.ShardID, from cellog.ReadFrom) (cellog.AddedID, error)
	// Before returns the highest added_id created before a time, or zero.
	Before(ctx context.Context, datastore string, shard cellog.ShardID, at time.Time, from cellog.ReadFrom) (cellog.AddedID, error)
	// Sequences fills in the Sequence of the final cells of a page of Log.
	Sequences(ctx context.Context, datastore string, shard cellog.ShardID, after cellog.AddedID, page []cellog.Cell, from cellog.ReadFrom) error
	State(ctx context.Context, datastore string, key cellog.Key) (cellog.CellState, error)
	// Rejected pages through the datastore's rejected cells; next is the place
	// behind the page.
	Rejected(ctx context.Context, datastore, after string, limit int) (out []cellog.RejectedCell, next string, more bool, err error)
	// Buffered says whose cells wait for their primary.
	Buffered(ctx context.Context, datastore string) ([]cellog.BufferedCells, error)
}

// Index answers queries of secondary indexes. The result is encoded as JSON.
// An error with Code() string, and Status() int where the code is not one of
// this package's, becomes a problem document.
type Index interface {
	Query(ctx context.Context, datastore, index string, params url.Values) (any, error)
}

// FinalMark returns up to which added_id a shard's log is final; false when
// that is not known. It must not block.
type FinalMark func(datastore string, shard cellog.ShardID) (cellog.AddedID, bool)

// Config is what an API needs. New works on a copy.
type Config struct {
	// Ingest takes the puts. Required.
	Ingest *ingest.Ingest
	// Store answers the reads. Required.
	Store Store
	// Index answers index queries; nil: they are refused with no_indexes.
	Index Index
	// Final says what is final; nil: nothing is known to be.
	Final FinalMark
	// Worker is the name under which other workers forward cells to this one;
	// empty: none are taken. It is a secret among workers.
	Worker string
	// Limits bound a body; they should be the ones of Ingest. Zero: 8 MiB,
	// 1,000 levels.
	Limits body.Limits
	// BatchBytes bounds the body of a batch, inflated. Default 64 MiB.
	BatchBytes int
	// BatchCells bounds the items of a batch. Default 10,000.
	BatchCells int
	// RequestBytes bounds the memory of all request bodies together. Default
	// 512 MiB.
	RequestBytes int64
	// PutTimeout is how long a put may take before it is answered 503 or 504.
	// Default 10 s.
	PutTimeout time.Duration
	// ReadTimeout bounds reads. Default 10 s.
	ReadTimeout time.Duration
	// BodyTimeout bounds the arrival of a request body. Default 60 s.
	BodyTimeout time.Duration
	// PollWait is how long a long poll waits for cells. Default 20 s.
	PollWait time.Duration
	// Logger gets 5xx answers and panics. Default: discard.
	Logger *slog.Logger
	// Registerer takes the metrics. Default: none.
	Registerer Registerer
}

func (c Config) withDefaults() Config {
	if c.Limits.Bytes == 0 {
		c.Limits.Bytes = body.DefaultBytes
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 64 << 20
	}
	if c.BatchCells == 0 {
		c.BatchCells = 10_000
	}
	if c.RequestBytes == 0 {
		c.RequestBytes = 512 << 20
	}
	for d, v := range map[*time.Duration]time.Duration{&c.PutTimeout: 10 * time.Second, &c.ReadTimeout: 10 * time.Second,
		&c.BodyTimeout: time.Minute, &c.PollWait: 20 * time.Second} {
		if *d == 0 {
			*d = v
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	if c.Ingest == nil || c.Store == nil {
		return errors.New("ingest/httpapi: ingest and store are both required")
	}
	for name, v := range map[string]int64{"batch_bytes": int64(c.BatchBytes), "batch_cells": int64(c.BatchCells), "request_bytes": c.RequestBytes,
		"limits.bytes": int64(c.Limits.Bytes), "put_timeout": int64(c.PutTimeout), "read_timeout": int64(c.ReadTimeout),
		"body_timeout": int64(c.BodyTimeout), "poll_wait": int64(c.PollWait)} {
		if v < 0 {
			return fmt.Errorf("ingest/httpapi: %s %d: want more than zero", name, v)
		}
	}
	return nil
}
