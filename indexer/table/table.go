package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
)

// Places says where shards are. Its methods may be called at the same time,
// and often: answer from memory.
type Places interface {
	// Shards returns a datastore's number of shards.
	Shards(ctx context.Context, datastore string) (int, error)
	// ShardDB returns the server on which the shard is open, with the shard's
	// epoch there. Shards of one server come with the same *sql.DB, which
	// accepts several statements in one packet.
	ShardDB(ctx context.Context, datastore string, shard cellog.ShardID) (*sql.DB, cellog.Epoch, error)
	// ReadDB returns a server to read the shard from.
	ReadDB(ctx context.Context, datastore string, shard cellog.ShardID, from cellog.ReadFrom) (*sql.DB, cellog.Origin, error)
}

// Config says what Tables work with.
type Config struct {
	// Places is required.
	Places Places
	// MultiStatements says that the databases accept several statements in
	// one packet, which saves round trips. Default false.
	MultiStatements bool
	// Parallel bounds the shards whose tables are made at the same time on one
	// server. Default 4.
	Parallel int
}

// Tables does all SQL on index tables. Its methods may be called at the same
// time.
type Tables struct {
	cfg Config

	mu      sync.Mutex
	numbers map[source]int64         // ours, committed in the source shard
	quiet   map[stream]int           // batches until all servers are told the progress
	turns   map[string]chan struct{} // by datastore: held by the Apply under way
	states  map[seenKey]seenState
	settled map[*indexer.Index]epochs // since its Ensure
}

// epochs are those of a datastore's shards.
type epochs map[cellog.ShardID]cellog.Epoch

// stream is a topic's partition as an index reads it.
type stream struct {
	datastore, index, topic string
	partition               int32
}

// source is a source shard of an index.
type source struct {
	datastore, index string
	shard            cellog.ShardID
}

var _ indexer.Tables = (*Tables)(nil)

// New returns Tables; it does not contact a server.
func New(cfg Config) (*Tables, error) {
	if cfg.Places == nil {
		return nil, errors.New("index tables: Config.Places is missing")
	}
	if cfg.Parallel < 0 {
		return nil, fmt.Errorf("index tables: Config.Parallel %d: want 1 or more, or 0 for 4", cfg.Parallel)
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = 4
	}
	return &Tables{cfg: cfg, numbers: map[source]int64{}, quiet: map[stream]int{}, turns: map[string]chan struct{}{}, states: map[seenKey]seenState{}, settled: map[*indexer.Index]epochs{}}, nil
}

// Entries and home tables with their database, quoted. The parts were checked
// by cellog.CheckDatastore and indexer.NewIndex; they hold no backtick.
func entryTable(ix *indexer.Index, shard cellog.ShardID) string {
	return "`" + cellog.DatabaseName(ix.Datastore(), shard) + "`.`idx_" + ix.Name() + "`"
}

func homeTable(ix *indexer.Index, shard cellog.ShardID) string {
	return "`" + cellog.DatabaseName(ix.Datastore(), shard) + "`.`idx_" + ix.Name() + "_home`"
}

func fieldColumn(f indexer.Field) string { return "`f_" + f.Name + "`" }
