package indexer

import (
	"context"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Tables keeps the index tables. The adapter is indexer/table. All methods may
// be called at the same time.
type Tables interface {
	// Ensure makes the index's tables where they are missing; it can be
	// repeated. It returns whether the index is new, so that MarkReady is
	// still to come.
	Ensure(ctx context.Context, ix *Index) (building bool, err error)
	// Settled returns nil while the shards are where they were at the index's
	// Ensure, ErrMoved when not: then what was applied may be gone. Apply
	// refuses with ErrMoved too until Ensure was called again.
	Settled(ctx context.Context, ix *Index) error
	// MarkReady records that the index has caught up for the first time.
	MarkReady(ctx context.Context, ix *Index) error
	// Apply brings a batch into the tables; after nil it is durable. After an
	// error any part of it may be there, and it must be applied again.
	Apply(ctx context.Context, b Batch) error
	// Progress returns the offset of a partition below which everything is in
	// the tables of every server.
	Progress(ctx context.Context, ix *Index, topic string, partition int32) (next int64, err error)
	// Select looks entries up.
	Select(ctx context.Context, s Select) (Selected, error)
}

// Op compares a field with values.
type Op int

// The operators of filters. Null compares with nothing: no filter finds it.
const (
	Equal Op = iota + 1
	NotEqual
	Less
	LessOrEqual
	Greater
	GreaterOrEqual
	In
)

// Filter is a condition on a field.
type Filter struct {
	// Field is the field's number in Index.Fields.
	Field int
	Op    Op
	// Values has one value, for In one or more; none is null.
	Values []Value
}

// Select asks for entries in the order of their row keys.
type Select struct {
	Index *Index
	// Shard is the value of the shard field.
	Shard Value
	// Filters must all hold.
	Filters []Filter
	// Fields are the numbers of the fields to return.
	Fields []int
	// After, if not nil, is the row key after which to begin.
	After *uuid.UUID
	// Limit bounds the entries, 1 or more.
	Limit int
	Read  cellog.ReadFrom
}

// Selected is what a Select found.
type Selected struct {
	Entries []Entry
	Origin  cellog.Origin
	// Building says that the index has not caught up for the first time yet:
	// entries may be missing.
	Building bool
}

// Entry is an entry with the fields that were asked for.
type Entry struct {
	Row    uuid.UUID
	Values []Value
}
