package table

import "errors"

var (
	// ErrStaleRoute is returned by Apply when a shard is not open at its place
	// in the epoch that Places named. Nothing of the transaction was kept; ask
	// Places again.
	ErrStaleRoute = errors.New("index tables: the shard is not open there in this epoch")

	// ErrRefused is returned by Apply when another indexer has taken a newer
	// assignment number in between. Applying the batch again takes the next
	// number.
	ErrRefused = errors.New("index tables: another indexer has taken over the source shard")

	// errFailpoint is returned where a test stops an Apply between two steps.
	errFailpoint = errors.New("index tables: stopped by a failpoint")
)
