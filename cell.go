package cellog

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ShardID numbers a shard of a datastore: 0 … shards-1.
type ShardID int

// AddedID is a cell's place in its shard's log: 1, 2, 3, … without holes.
// Zero means "before the first cell".
type AddedID int64

// RefKey says which version of a facet, or which entry of a list, a cell is.
// All int64 values are legal; the newest cell of a column has the highest one.
type RefKey int64

// Epoch counts the times a shard changed its place (promotion, move). The pair
// (Epoch, AddedID) is unique for all time. A new shard starts at FirstEpoch.
type Epoch int32

// Term counts the claims to be a storage cluster's master. A new cluster
// starts at FirstTerm.
type Term int32

// Sequence numbers the cells of one column in one shard: 1, 2, 3, … without
// holes, in AddedID order.
type Sequence int64

// FirstEpoch and FirstTerm are what a newly created shard and cluster have.
const (
	FirstEpoch Epoch = 1
	FirstTerm  Term  = 1
)

// Key names a cell within a datastore.
type Key struct {
	Row    uuid.UUID
	Column string
	Ref    RefKey
}

// String returns row_key/column/ref_key, the form of the ce_subject header.
func (k Key) String() string {
	return k.Row.String() + "/" + k.Column + "/" + strconv.FormatInt(int64(k.Ref), 10)
}

// ParseKey reads what Key.String writes. It returns an error that names the
// part which is wrong.
func ParseKey(s string) (Key, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return Key{}, fmt.Errorf("cell key %q: want row_key/column/ref_key", s)
	}
	row, err := ParseRowKey(parts[0])
	if err != nil {
		return Key{}, err
	}
	if err := CheckColumn(parts[1]); err != nil {
		return Key{}, err
	}
	ref, err := ParseRefKey(parts[2])
	if err != nil {
		return Key{}, err
	}
	return Key{Row: row, Column: parts[1], Ref: ref}, nil
}

// Put is a request to store one cell.
type Put struct {
	Key
	// Body is the cell's JSON text, exactly as the client sent it.
	Body []byte
	// TraceParent is the W3C trace context of the put, or empty.
	TraceParent string
}

// Cell is a stored cell together with its place in the log.
type Cell struct {
	Key
	Datastore string
	Shard     ShardID
	AddedID   AddedID
	Epoch     Epoch
	// Sequence is the cell's number among its column's cells in its shard. It
	// is zero where it was not asked for: it lives in Kafka and can be
	// recomputed from the entity table, it is not stored with the cell.
	Sequence Sequence
	// CreatedAt is the commit's time by the master's clock, UTC, microseconds,
	// never decreasing within a shard.
	CreatedAt time.Time
	// Body is the cell's JSON text.
	Body []byte
	// TraceParent is the W3C trace context of the put, or empty.
	TraceParent string
}

// ID returns <datastore>/<shard>/<added_id>, the form of the ce_id header.
func (c Cell) ID() string { return CellID(c.Datastore, c.Shard, c.AddedID) }

// CellID returns <datastore>/<shard>/<added_id>.
func CellID(datastore string, shard ShardID, id AddedID) string {
	return datastore + "/" + strconv.Itoa(int(shard)) + "/" + strconv.FormatInt(int64(id), 10)
}

// Get names a cell to be read: a version, or the newest one of a column.
type Get struct {
	Key
	// Newest asks for the highest ref_key; Ref is then ignored.
	Newest bool
}

// Outcome is what became of one put.
type Outcome int

const (
	// Created: this put stored the cell.
	Created Outcome = iota + 1
	// Same: an equal body already stood under the key; nothing changed.
	Same
	// Conflict: another body stands under the key; nothing changed.
	Conflict
	// Buffered: the shard's primary gives no answer; the put is durable on two
	// other machines, not readable yet, and goes in when the primary is back.
	// It may then lose to another body.
	Buffered
)

// String returns created, same, conflict or buffered.
func (o Outcome) String() string {
	switch o {
	case Created:
		return "created"
	case Same:
		return "same"
	case Conflict:
		return "conflict"
	case Buffered:
		return "buffered"
	}
	return "outcome(" + strconv.Itoa(int(o)) + ")"
}

// Stored says how a put ended and where the cell that now stands is. Of a put
// that was Buffered only the Shard is known.
type Stored struct {
	Outcome   Outcome
	Shard     ShardID
	AddedID   AddedID
	Epoch     Epoch
	CreatedAt time.Time
}
