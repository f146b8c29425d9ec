package cellog

import (
	"fmt"
	"time"
)

// ReadFrom says which node of a storage cluster a read asks.
type ReadFrom int

const (
	// Master: the node that takes the writes, so a read sees every
	// acknowledged cell.
	Master ReadFrom = iota
	// Minion: a replica, which may be behind.
	Minion
)

// String returns master or minion.
func (r ReadFrom) String() string {
	if r == Minion {
		return "minion"
	}
	return "master"
}

// ParseReadFrom reads what ReadFrom.String writes; empty means Master.
func ParseReadFrom(s string) (ReadFrom, error) {
	switch s {
	case "", "master":
		return Master, nil
	case "minion":
		return Minion, nil
	}
	return Master, fmt.Errorf("read %.40q: want master or minion", s)
}

// Origin says where the answer to a read came from.
type Origin struct {
	// From is the role of the node that answered.
	From ReadFrom
	// Node is its name.
	Node string
	// Stale is set when a newer answer may exist elsewhere: the master was
	// asked for and a minion answered in its place, or it is not certain that
	// the one that answered is still the master.
	Stale bool
	// Lag is how far a minion may be behind: the age of the newest heartbeat
	// that has reached it, so it grows too while the master is away. Zero for
	// a master, UnknownLag where no heartbeat was found.
	Lag time.Duration
}

// UnknownLag is the Lag of a minion that has no heartbeat.
const UnknownLag = time.Duration(-1)

// The states of a put that CellState tells.
const (
	StateStored   = "stored"
	StateBuffered = "buffered"
	StateRejected = "rejected"
	StateUnknown  = "unknown"
)

// CellState says what is known of a key.
type CellState struct {
	// State is one of the constants above; StateStored if a cell stands under
	// the key, also when other bodies for it were rejected.
	State string
	// Cell is the cell that stands, if any; its Body is not set.
	Cell *Cell
	// Rejected tells of bodies that lost after they had been accepted (202).
	Rejected []Rejection
}

// Rejection is a body that was accepted and lost to another one, or was
// refused, when it was to be stored.
type Rejection struct {
	// Reason is conflict, or the code of the refusal.
	Reason string
	// WinnerEpoch and WinnerAddedID say where the cell is that stands; zero if
	// there is none.
	WinnerEpoch   Epoch
	WinnerAddedID AddedID
	RejectedAt    time.Time
}

// RejectedCell is a body that was answered 202 and then lost, or was refused.
type RejectedCell struct {
	Key
	Rejection
	Shard ShardID
	// Body and WinnerBody are in stored form; WinnerBody is nil if there is no
	// winner.
	Body, WinnerBody []byte
	// Cluster is the storage cluster that keeps this record, ID its number
	// there. Each body is kept by the machines that held its copies, so it may
	// be there twice.
	Cluster string
	ID      int64
}

// BufferedCells says how many cells of a shard a server holds that wait for the
// shard's primary.
type BufferedCells struct {
	// Node is the server, cluster/node.
	Node  string
	Shard ShardID
	Cells int
	// Oldest is when the first of them was put.
	Oldest time.Time
}
