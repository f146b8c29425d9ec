package publish

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
)

// server is a server whose tables do not change while it is tailed.
type server struct {
	table
	epoch cellog.Epoch
}

func (s server) Heads(_ context.Context, f func(cdc.Head) error) error {
	return f(cdc.Head{Shard: shard2, Epoch: s.epoch, Last: cellog.AddedID(len(s.table))})
}

func (s server) Now(context.Context) (string, error) { return "now", nil }

// Run shows nothing: what there is, is in the tables.
func (s server) Run(ctx context.Context, _ string, _ func(*cdc.Transaction) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

// A running tailer is fenced by a claim, waits, and goes on from the node that
// was opened: with the rows of the old epoch that it held, then with those of the
// new one.
func TestTailerWaitsForTheOpen(t *testing.T) {
	p := newOpened(t)
	rows := newTable(t, "BASE", "STATUS", "BASE", "BASE", "STATUS", "BASE")
	for i := range rows[4:] {
		rows[4+i].Epoch = 2
	}
	nodes := make(chan cdc.Node, 1)
	tl, err := cdc.New(cdc.Config{
		Cluster: "c1", Publisher: p, BeatEvery: 50 * time.Millisecond, StandBy: 10 * time.Second,
		Nodes: func(context.Context) ([]cdc.Node, error) {
			n := <-nodes
			nodes <- n
			return []cdc.Node{n}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	last := func() cellog.AddedID {
		pos, err := p.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return pos.Shards[shard2].Last
	}
	old := server{rows[:3], 1}
	nodes <- cdc.Node{Name: "n1", Source: old, Entities: old}
	if err := tl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tl.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	waitUntil(t, "three cells", func() bool { return last() == 3 })
	c := mustClaim(t, p, ClaimRequest{Expect: 1, Mark: "a"})
	waitUntil(t, "the tailer waits", func() bool {
		err := tl.Ready()
		return err != nil && strings.Contains(err.Error(), "claimed in term 2")
	})
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	<-nodes
	next := server{rows, 2}
	nodes <- cdc.Node{Name: "n2", Source: next, Entities: next}
	if err := c.Open(t.Context(), OpenRequest{Node: "n2", ServerUUID: "u2", First: map[cdc.ShardKey]cellog.AddedID{shard2: 5}}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "all cells", func() bool { return last() == cellog.AddedID(len(rows)) })
	pos, err := p.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := pos.Shards[shard2]
	if at.Epoch != 2 || at.First != 5 || pos.Cluster.Term != 2 || pos.Cluster.Node != "n2" {
		t.Errorf("%+v, %+v", at, pos.Cluster)
	}
	for column, ids := range map[string][]cellog.AddedID{"BASE": {1, 3, 4, 6}, "STATUS": {2, 5}} {
		i := 0
		err := kafka.ReadRange(t.Context(), p.cfg.Kafka, cellog.TopicName(p.cfg.Prefix, "trips", column), cellog.PartitionOf(2, 2), 0, at.Columns[column].Offset+1, func(f kafka.Fetched) error {
			cell, err := record.Decode(f.Record)
			if err != nil {
				return err
			}
			if i >= len(ids) || cell.AddedID != ids[i] || cell.Sequence != cellog.Sequence(i+1) || cell.Key != rows[ids[i]-1].Key || cell.Epoch != rows[ids[i]-1].Epoch {
				t.Errorf("%s, record %d: %+v", column, i, cell)
			}
			i++
			return nil
		})
		if err != nil || i != len(ids) {
			t.Errorf("%s: %d records: %v", column, i, err)
		}
	}
}
