package publish

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/schemas/position"
)

// ofEpoch is a table whose shard_log says another epoch.
type ofEpoch struct {
	table
	epoch cellog.Epoch
}

func (e ofEpoch) Heads(_ context.Context, f func(cdc.Head) error) error {
	return f(cdc.Head{Shard: shard2, Epoch: e.epoch, Last: cellog.AddedID(len(e.table))})
}

// A repair publishes no cell of a dead branch: it refuses a node of an older epoch
// than the position's, and one with other cells than those that were published,
// before it sends anything.
func TestRepairRefusesADeadBranch(t *testing.T) {
	p := newPublisher(t)
	e := newTable(t, "BASE", "STATUS", "BASE", "BASE")
	e[2].Epoch, e[3].Epoch = 2, 2
	s, _ := openSession(t, p)
	at := publishAll(t, s, e)
	at.Epoch, at.First = 2, 3
	at.Columns = maps.Clone(at.Columns)
	err := s.Commit(t.Context(), cdc.Commit{Shards: map[cdc.ShardKey]position.Shard{shard2: at}, Cluster: position.Cluster{Term: 2, State: position.Open, Node: "n1"}})
	if err != nil {
		t.Fatal(err)
	}
	merged, status := cellog.MergedTopicName(p.cfg.Prefix, "trips"), cellog.TopicName(p.cfg.Prefix, "trips", "STATUS")
	for _, topic := range []string{merged, status} {
		if err := p.adm.DeleteTopic(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
	}
	with := func(change func(table)) table {
		other := slices.Clone(e)
		change(other)
		return other
	}
	for _, tc := range []struct {
		name string
		node cdc.EntityReader
		want error
	}{
		{"an older epoch", ofEpoch{e, 1}, cdc.ErrNodeBehind},
		{"a cell of an older epoch under a new one's id", ofEpoch{with(func(e table) { e[2].Epoch = 1 }), 2}, cdc.ErrNodeDiffers},
		{"a cell of the new epoch before its first", ofEpoch{with(func(e table) { e[1].Epoch = 2 }), 2}, cdc.ErrNodeDiffers},
		{"a cell of a later epoch", ofEpoch{with(func(e table) { e[3].Epoch = 3 }), 3}, cdc.ErrNodeDiffers},
		{"another column", with(func(e table) { e[1].Column = "NOTES" }), cdc.ErrNodeDiffers},
		{"fewer cells of a column", with(func(e table) { e[2].Column = "STATUS" }), cdc.ErrNodeDiffers},
		{"another cell where the topic ends", with(func(e table) { e[3].Row = uuid.New() }), cdc.ErrNodeDiffers},
	} {
		if done, err := p.Repair(t.Context(), trips, 2, tc.node); !errors.Is(err, tc.want) || len(done) > 0 {
			t.Errorf("%s: %v %v", tc.name, done, err)
		}
	}
	if offsets, err := p.adm.Offsets(t.Context(), merged); err == nil {
		for _, o := range offsets {
			if o.End > o.Start {
				t.Errorf("something was sent: %+v", offsets)
			}
		}
	}
	done, err := p.Repair(t.Context(), trips, 2, e)
	if err != nil || done[merged] != 4 || done[status] != 1 || len(done) != 2 {
		t.Errorf("from a node that has them: %v %v", done, err)
	}
}
