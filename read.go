package cellog

import "fmt"

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
	// asked for and a minion answered in its place.
	Stale bool
}
