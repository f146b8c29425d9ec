package storage

import "errors"

// Coder is an error with a stable code, which the HTTP API shows.
type Coder interface {
	error
	Code() string
}

type coded struct{ code, text string }

func (e *coded) Error() string { return e.text }
func (e *coded) Code() string  { return e.code }

var (
	// ErrUnknownDatastore is returned when no server knows the datastore.
	ErrUnknownDatastore error = &coded{"unknown_datastore", "no such datastore; `cellog datastore create` makes one"}

	// ErrUnavailable is returned when no node could do the work; nothing was
	// kept. Retrying later is safe.
	ErrUnavailable error = &coded{"unavailable", "storage is unavailable, nothing was kept"}

	// ErrOutcomeUnknown is returned when a write was sent and its answer was
	// lost, and the shard could not be asked in time: the cell may be stored
	// or not. Put the same cell again to learn it.
	ErrOutcomeUnknown error = &coded{"outcome_unknown", "the outcome of the put is unknown, put the same cell again"}

	// ErrColumnLimit is returned when the cell's column would be one too many
	// in its storage cluster; nothing was kept.
	ErrColumnLimit error = &coded{"column_limit", "the storage cluster has as many columns as cellog_meta.cluster.column_limit allows"}

	// ErrNotFound is returned by reads of a cell that is not there.
	ErrNotFound error = &coded{"not_found", "no such cell"}

	// ErrTooMuch is returned for the part of a multi-get that would make the
	// answer larger than its limit; get it by itself.
	ErrTooMuch error = &coded{"answer_too_large", "the answer has no room for this cell, get it by itself"}

	// ErrUnknownShard is returned when a shard's number is outside the
	// datastore's.
	ErrUnknownShard error = &coded{"unknown_shard", "the datastore has no such shard"}

	// ErrDamaged is returned when what lies on disk breaks its own rules: a
	// body whose checksum is wrong, a shard_log behind its entity table. Only
	// the damaged cell or shard is affected; it needs an operator.
	ErrDamaged error = &coded{"damaged", "stored data is damaged"}

	// ErrBadPlace is returned for a place in a list that no list gave.
	ErrBadPlace error = &coded{"bad_cursor", "the place is not one that the list gave"}

	// ErrShards is returned by the creation of a datastore that is recorded
	// with another number of shards: it is fixed for ever.
	ErrShards error = &coded{"shards_differ", "the datastore exists with another number of shards"}
)

// ErrStaleRoute is returned inside storage when a shard is no longer where its
// route said; nothing was kept. The store takes a new route and tries again.
var ErrStaleRoute = errors.New("the shard is not open here in this epoch")
