package storage

import (
	"fmt"
	"time"

	"github.com/cellog/cellog"
)

// Ack says how safe a cell is when its put is answered.
type Ack int

const (
	// AckPrimary: on one disk, that of its shard's master.
	AckPrimary Ack = iota
	// AckCopy: also on another cluster's master, or final.
	AckCopy
	// AckFinal: committed in Kafka.
	AckFinal
)

// ParseAck reads primary, copy or final.
func ParseAck(s string) (Ack, error) {
	for _, a := range []Ack{AckPrimary, AckCopy, AckFinal} {
		if s == a.String() {
			return a, nil
		}
	}
	return 0, fmt.Errorf("ack %q: want primary, copy or final", s)
}

// String returns primary, copy or final.
func (a Ack) String() string { return [...]string{"primary", "copy", "final"}[a] }

// Mark says how far a shard's log is final: all of 1 … Last are, and those from
// First on have the epoch Epoch or a newer one.
type Mark struct {
	Epoch cellog.Epoch
	First cellog.AddedID
	Last  cellog.AddedID
	// Moves says that a move of the shard was begun at some time: that a node is
	// its cluster's master does not tell that it has the shard's newest cells.
	Moves bool
}

// Marks knows what is final. Its methods must not block.
type Marks interface {
	// Mark returns a shard's mark; false when it is not known.
	Mark(datastore string, shard cellog.ShardID) (Mark, bool)
	// Changed returns a channel that is closed when a mark moves next.
	Changed() <-chan struct{}
}

// LookFor is for how long a look at a cluster's terms vouches for reads of its
// master: a promotion lets nobody write before 3 s after its claim.
const LookFor = 2 * time.Second

// Opened is what was seen of a cluster's terms in Kafka.
type Opened struct {
	// Node is the one that the newest term opened; empty while that is claimed
	// only, or none is known.
	Node string
	// Looked is when that was the newest, by this process's own clock.
	Looked time.Time
}

// Masters returns what was seen last of a cluster. It must not block.
type Masters func(cluster string) Opened
