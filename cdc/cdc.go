package cdc

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// ShardKey names a shard among all datastores.
type ShardKey struct {
	Datastore string
	Shard     cellog.ShardID
}

// String returns the shard's database name, such as trips_0007.
func (k ShardKey) String() string { return cellog.DatabaseName(k.Datastore, k.Shard) }

// Row is one row of an entity table.
type Row struct {
	AddedID cellog.AddedID
	Epoch   cellog.Epoch
	RowKey  uuid.UUID
	Column  string
	Ref     cellog.RefKey
	// Body is as stored (schemas/body).
	Body        []byte
	CreatedAt   time.Time
	TraceParent string

	form record.Form // of Body, once it was prepared for Kafka
}

// Key returns the cell's key.
func (r *Row) Key() cellog.Key { return cellog.Key{Row: r.RowKey, Column: r.Column, Ref: r.Ref} }

// Change is what one committed transaction did to one shard.
type Change struct {
	Shard ShardKey
	// Rows are the inserted rows, in order.
	Rows []Row
	// UpTo, if not zero, says that rows up to this added_id were inserted but
	// are not carried, because the transaction is too big for memory: they
	// are to be read from the entity table.
	UpTo cellog.AddedID
	// Bad, if not nil, says what the transaction did to the shard's entity
	// table that nobody may do; the shard must stop before this transaction.
	Bad error
	// Lost, if not nil, says that a statement took the entity table or rows of it
	// away; the shard must stop unless what was published is there again.
	Lost error
}

// Beat is one row of cellog_meta.heartbeats.
type Beat struct {
	Cluster   string
	Beat      int64
	WrittenAt time.Time
}

// Transaction is a committed transaction, in binlog order.
type Transaction struct {
	Changes []Change
	Beats   []Beat
	// Position, if not empty, is where the binlog can be continued after this
	// transaction. Not every transaction carries one.
	Position string
	// Bytes is about how much memory the transaction holds.
	Bytes int
	// Statement says that it holds a statement where rows should be, which may
	// have put cells that no row shows.
	Statement bool
	// Reading, if not zero, says that this is none yet: of one that is big, so
	// many bytes have been read.
	Reading int64
}

// Source is one server's binlog. cdc/binlog implements it.
type Source interface {
	// Now returns the server's present position: everything committed before
	// the call is in it.
	Now(ctx context.Context) (string, error)
	// Run yields the transactions after a position, in order, until ctx ends
	// or an error; it does not retry. handle is called from one goroutine; it
	// owns the transaction, and its error ends Run and is returned. An empty
	// position is before the server's first transaction. ErrPositionLost: the
	// server cannot continue there.
	Run(ctx context.Context, from string, handle func(*Transaction) error) error
}

// EntityReader reads the tables of the server that a Source belongs to. What
// joins the parts adapts the storage stage to it.
type EntityReader interface {
	// Heads calls f for every shard of which the server has a shard_log.
	Heads(ctx context.Context, f func(Head) error) error
	// ReadEntity returns the cells of a shard with after < added_id, in order,
	// at most limit of them and fewer if they are big, at least one if there
	// is any; their bodies are as stored. Rows that are not there are not
	// returned, which is no error; an error marked ErrShard says that a row is
	// damaged.
	ReadEntity(ctx context.Context, datastore string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error)
	// ScanEntity calls f for the cells of a shard with after < added_id <= upTo,
	// in order, at most limit of them; their bodies are as stored. The cell and
	// its body are f's until it returns; its error ends the scan and is
	// returned. An error marked ErrShard says that the row behind the last one
	// given is damaged. It is called from several goroutines.
	ScanEntity(ctx context.Context, shard ShardKey, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error
	// CellsAt returns the cells that are at the given places, without their
	// bodies, by shard; where there is none, none is returned. It asks for many
	// shards at a time.
	CellsAt(ctx context.Context, at map[ShardKey]cellog.AddedID) (map[ShardKey]cellog.Cell, error)
	// Datastore returns a row of cellog_meta.datastores; ok is false if there
	// is none.
	Datastore(ctx context.Context, name string) (shards, partitions int, ok bool, err error)
}

// Head is a row of a shard's shard_log.
type Head struct {
	Shard ShardKey
	Epoch cellog.Epoch
	Term  cellog.Term
	Last  cellog.AddedID
}

// Node is a server that can be tailed.
type Node struct {
	// Name is the one by which a promotion opens it.
	Name string
	// Master says that it takes writes.
	Master   bool
	Source   Source
	Entities EntityReader
	// Lag says how far the server is behind its master; known is false when it
	// cannot be told. Nil: it is never behind.
	Lag func(ctx context.Context) (lag time.Duration, known bool)
}

// Datastore is what the tailer knows of a datastore.
type Datastore struct {
	Name       string
	Shards     int
	Partitions int
	// Merged says that every cell also goes to the merged topic.
	Merged bool
	// Values are the forms of the columns' records.
	Values record.Forms
}

// Positions is the content of a cluster's positions topic.
type Positions struct {
	// Cluster is nil until somebody has written the first open.
	Cluster *position.Cluster
	Shards  map[ShardKey]position.Shard
}

// Publisher is the Kafka side. cdc/publish implements it.
type Publisher interface {
	// Positions reads what is committed; with open transactions in flight it
	// is what was so far.
	Positions(ctx context.Context) (Positions, error)
	// Open fences every older session of the cluster, aborts what it left
	// open, and returns a new one with the positions that now stand.
	Open(ctx context.Context) (Session, Positions, error)
	// Watch returns nil as soon as a heartbeat with the given tailer mark
	// arrives in Kafka, and ctx's error otherwise.
	Watch(ctx context.Context, mark string) error
}

// Session publishes, until its first error; then it must be closed. One
// goroutine may use it, except that Verify, Topic and Encode may be called by
// others at the same time. Send, Flush and Commit return errors marked ErrFenced, or
// ErrRefused when the broker refuses a record for what it is.
type Session interface {
	// Verify fetches the records that the shards' positions name. The error is
	// for when it cannot be told; what was found is in the results.
	Verify(ctx context.Context, shards map[ShardKey]VerifyShard) (map[ShardKey]Verified, error)
	// Topic makes sure that a column's topic is there and as it should be. An
	// error marked ErrShard stops the shards that need the topic.
	Topic(ctx context.Context, ds *Datastore, column string) error
	// Encode turns a cell, whose body is a value of a form, into its column
	// topic's message, and into its merged topic's if the datastore has one
	// (else nil). The messages keep the cell's body.
	Encode(ds *Datastore, cell *cellog.Cell, form record.Form) (column, merged Message)
	// Send hands messages over, in a transaction that it begins if needed.
	Send(ctx context.Context, m Message) error
	// Flush waits until all that was sent is in Kafka.
	Flush(ctx context.Context) error
	// Commit writes the positions and the beats into the transaction and
	// commits it. Any error ends the session.
	Commit(ctx context.Context, c Commit) error
	// Close gives up what is open.
	Close(ctx context.Context)
}

// Commit is what goes into a transaction beside its cells.
type Commit struct {
	Shards  map[ShardKey]position.Shard
	Cluster position.Cluster
	// Beats are published under the cluster record's tailer mark, with what the
	// tailer says of itself.
	Beats  []Beat
	Tailer heartbeat.Tailer
}

// VerifyShard is a shard's position and its datastore.
type VerifyShard struct {
	Datastore *Datastore
	Position  position.Shard
}

// Verified is what Verify found of a shard. Err is nil if all is in its place;
// otherwise it is marked ErrTailLost, holds the command that mends it, and
// stops the shard. Last is the shard's last published cell, without its body;
// its AddedID is zero if Kafka has expired it.
type Verified struct {
	Err  error
	Last cellog.Cell
}

// Message is an encoded cell. Offset is its place in its column's topic, valid
// after a Flush without error.
type Message interface {
	Offset() int64
	Size() int
}
