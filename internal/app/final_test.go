package app

import (
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// Whose a shard is and how far it is final only moves on, in whatever order the
// topics are read, and if a topic is read again from its begin.
func TestFinalOnlyMovesOn(t *testing.T) {
	cfg := &config.Config{Clusters: []config.Cluster{{Name: "c0"}, {Name: "c1"}}}
	f := newFinal(cfg, Env{})
	take := func(in, owner string, epoch cellog.Epoch, last cellog.AddedID) {
		t.Helper()
		value := position.Marshal(position.Shard{Owner: owner, Epoch: epoch, First: 1, Last: last})
		r := record.Record{Key: []byte(position.ShardKey("trips", 0)), Value: value}
		if err := f.take(cellog.PositionsTopicName("", in), kafka.Fetched{Record: r}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(owner string, last cellog.AddedID, moves bool) {
		t.Helper()
		for topic := range f.topics {
			f.known[topic] = true
		}
		m, _ := f.Mark("trips", 0)
		if got := f.owner("trips", 0); got != owner || m.Last != last || m.Moves != moves {
			t.Errorf("%q has it up to %d (moves: %v), want %q, %d, %v", got, m.Last, m.Moves, owner, last, moves)
		}
	}
	is("", 0, false)
	take("c0", "c0", 1, 7)
	is("c0", 7, false)
	take("c1", "c0", 0, 0) // the new cluster is told that it is not its
	is("c0", 7, true)
	take("c0", "c1", 1, 7) // handed over
	is("c1", 7, true)
	take("c0", "c0", 1, 7) // read again
	is("c1", 7, true)
	take("c1", "c1", 2, 7)
	take("c1", "c1", 2, 9)
	take("c0", "c0", 1, 7)
	take("c0", "c1", 1, 7)
	is("c1", 9, true)
}
