package publish

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/schemas/position"
)

// twoClusters are publishers of c1, which has published four cells of shard2, and
// of c2, both open.
func twoClusters(t *testing.T) (c1, c2 *Publisher, at position.Shard) {
	t.Helper()
	c1 = newPublisher(t)
	s, _ := openSession(t, c1)
	at = publishAll(t, s, newTable(t, "BASE", "BASE", "STATUS", "BASE"))
	c2, err := New(Config{Kafka: c1.cfg.Kafka, Cluster: "c2", Prefix: c1.cfg.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c2.Close)
	if _, err := c2.WriteFirstOpen(t.Context(), "n2", "u2"); err != nil {
		t.Fatal(err)
	}
	return c1, c2, at
}

// handOver hands shard2 over; locked counts the calls under the lock.
func handOver(t *testing.T, from *Publisher, to string, epoch cellog.Epoch, last cellog.AddedID) (locked int, err error) {
	t.Helper()
	err = from.HandOver(t.Context(), HandOverRequest{Shard: shard2, To: to, Epoch: epoch, Last: last,
		Locked: func(_ position.Cluster, commit func() error) error { locked++; return commit() }})
	return locked, err
}

func standing(t *testing.T, p *Publisher) (position.Shard, string, cdc.Positions) {
	t.Helper()
	all, err := p.Everywhere(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, in := Newest(all, shard2)
	return s, in, all[p.cfg.Cluster]
}

// A shard goes to another cluster with its sequences and offsets, in the next
// epoch, and back again; each step may be repeated.
func TestHandOverAndTakeOver(t *testing.T) {
	c1, c2, at := twoClusters(t)
	for range 2 {
		if err := c2.Disown(t.Context(), shard2, "c1"); err != nil {
			t.Fatal(err)
		}
	}
	if s, in, own := standing(t, c2); in != "c1" || s.Last != 4 || own.Shards[shard2].Owner != "c1" {
		t.Errorf("%+v in %s, %+v", s, in, own)
	}
	if _, err := c2.TakeOver(t.Context(), shard2); !errors.Is(err, ErrNotOwner) {
		t.Errorf("taken over before it was handed over: %v", err)
	}
	for i := range 2 {
		if n, err := handOver(t, c1, "c2", 1, 4); err != nil || n != 1-i {
			t.Errorf("%d calls, %v", n, err)
		}
	}
	for range 2 {
		taken, err := c2.TakeOver(t.Context(), shard2)
		want := at
		want.Owner, want.Epoch, want.First = "c2", 2, 5
		if err != nil || cmp.Diff(want, taken) != "" {
			t.Errorf("%v\n%s", err, cmp.Diff(want, taken))
		}
	}
	_, in, own := standing(t, c2)
	if in != "c2" || own.Cluster.GTID != "" || own.Cluster.Node != "n2" {
		t.Errorf("in %s, %+v", in, own.Cluster)
	}
	if err := c1.Disown(t.Context(), shard2, "c2"); err != nil {
		t.Fatal(err)
	}
	if _, err := handOver(t, c2, "c1", 2, 4); err != nil {
		t.Fatal(err)
	}
	taken, err := c1.TakeOver(t.Context(), shard2)
	if err != nil || taken.Epoch != 3 || taken.Owner != "c1" || !maps.Equal(taken.Columns, at.Columns) {
		t.Errorf("%+v %v", taken, err)
	}
	if err := c1.Disown(t.Context(), shard2, "c2"); !errors.Is(err, ErrNotOwner) {
		t.Errorf("an owner was told that it has it not: %v", err)
	}
}

// What is not final, of another epoch, or another cluster's is not handed over;
// nor is anything while a claim stands.
func TestHandOverRefuses(t *testing.T) {
	c1, c2, _ := twoClusters(t)
	for _, c := range []struct {
		epoch cellog.Epoch
		last  cellog.AddedID
	}{{0, 4}, {1, 5}, {1, 3}} {
		if n, err := handOver(t, c1, "c2", c.epoch, c.last); err == nil || n != 0 {
			t.Errorf("epoch %d, last %d: %v", c.epoch, c.last, err)
		}
	}
	no := errors.New("not moving any more")
	err := c1.HandOver(t.Context(), HandOverRequest{Shard: shard2, To: "c2", Epoch: 1, Last: 4,
		Locked: func(position.Cluster, func() error) error { return no }})
	if s, in, _ := standing(t, c1); !errors.Is(err, no) || in != "c1" || s.Owner != "c1" {
		t.Errorf("%v, %+v", err, s)
	}
	mustClaim(t, c1, ClaimRequest{Mark: "a"})
	if _, err := handOver(t, c1, "c2", 1, 4); !errors.Is(err, cdc.ErrNotOpened) {
		t.Errorf("while a claim stands: %v", err)
	}
	if _, err := c2.TakeOver(t.Context(), shard2); !errors.Is(err, ErrNotOwner) {
		t.Error(err)
	}
}

// A promotion that comes while a shard is handed over fences the mover; one of the
// new owner takes the shard with it.
func TestHandOverAgainstPromotions(t *testing.T) {
	c1, c2, _ := twoClusters(t)
	claim, tries := (*Claim)(nil), 0
	err := c1.HandOver(t.Context(), HandOverRequest{Shard: shard2, To: "c2", Epoch: 1, Last: 4, Locked: func(_ position.Cluster, commit func() error) error {
		if tries++; tries == 1 {
			claim = mustClaim(t, c1, ClaimRequest{Mark: "a"})
		}
		return commit()
	}})
	if !errors.Is(err, cdc.ErrNotOpened) || tries != 1 {
		t.Fatalf("%d tries: %v", tries, err)
	}
	open := OpenRequest{Node: "n1", ServerUUID: "u1", First: map[cdc.ShardKey]cellog.AddedID{shard2: 5}}
	if err := claim.Open(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	if _, err := handOver(t, c1, "c2", 1, 4); err == nil {
		t.Error("a move that a promotion has voided was handed over")
	}
	if _, err := handOver(t, c1, "c2", cellog.Epoch(claim.Term()), 4); err != nil {
		t.Fatal(err)
	}
	next := mustClaim(t, c2, ClaimRequest{Mark: "b"})
	if s := next.Positions()[shard2]; s.Owner != "c2" || s.Last != 4 || next.Term() <= claim.Term() {
		t.Errorf("%+v, term %d", s, next.Term())
	}
	if err := next.Open(t.Context(), OpenRequest{Node: "n2", ServerUUID: "u2", First: map[cdc.ShardKey]cellog.AddedID{shard2: 5}}); err != nil {
		t.Fatal(err)
	}
	taken, err := c2.TakeOver(t.Context(), shard2)
	if err != nil || taken.Epoch != cellog.Epoch(next.Term()) {
		t.Errorf("%+v %v", taken, err)
	}
	next.Close(context.Background())
}
