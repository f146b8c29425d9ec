package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

func newPublisher(t *testing.T) *Publisher {
	t.Helper()
	p, err := New(Config{Kafka: kafka.Config{Addrs: kafkatest.Start(t).Addrs()}, Cluster: "c1", Prefix: kafkatest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func openSession(t *testing.T, p *Publisher) (*session, cdc.Positions) {
	t.Helper()
	s, pos, err := p.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s.(*session), pos
}

var (
	trips  = &cdc.Datastore{Name: "trips", Shards: 4, Partitions: 2, Merged: true}
	shard2 = cdc.ShardKey{Datastore: "trips", Shard: 2}
)

// table is an entity table in stored form.
type table []cellog.Cell

func newTable(t *testing.T, columns ...string) table {
	t.Helper()
	stored, err := body.Encode(nil, []byte(`{"a":1}`), body.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var out table
	for i, c := range columns {
		out = append(out, cellog.Cell{Key: cellog.Key{Row: uuid.New(), Column: c, Ref: 1}, Datastore: "trips", Shard: 2,
			AddedID: cellog.AddedID(i + 1), Epoch: 1, CreatedAt: time.Unix(100, 0).UTC(), Body: stored})
	}
	return out
}

func (e table) Heads(_ context.Context, f func(cdc.Head) error) error {
	return f(cdc.Head{Shard: shard2, Epoch: e[len(e)-1].Epoch, Last: cellog.AddedID(len(e))})
}

func (e table) ReadEntity(_ context.Context, _ string, _ cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	rest := e[min(int(after), len(e)):]
	return append([]cellog.Cell(nil), rest[:min(limit, len(rest))]...), nil
}

func (e table) ScanEntity(_ context.Context, _ cdc.ShardKey, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error {
	for _, c := range e[min(int(after), len(e)):min(int(upTo), int(after)+limit, len(e))] {
		if err := f(&c); err != nil {
			return err
		}
	}
	return nil
}

func (e table) CellsAt(_ context.Context, at map[cdc.ShardKey]cellog.AddedID) (map[cdc.ShardKey]cellog.Cell, error) {
	out := make(map[cdc.ShardKey]cellog.Cell)
	if id := at[shard2]; id > 0 && int(id) <= len(e) {
		out[shard2] = e[id-1]
	}
	return out, nil
}

func (e table) Datastore(context.Context, string) (int, int, bool, error) { return 4, 2, true, nil }

// publishAll commits the table's cells and their position.
func publishAll(t *testing.T, s *session, e table) position.Shard {
	t.Helper()
	at := position.Shard{Owner: "c1", Epoch: 1, First: 1, Columns: make(map[string]position.Column)}
	newest := make(map[string]cdc.Message)
	for _, c := range e {
		if err := s.Topic(t.Context(), trips, c.Column); err != nil {
			t.Fatal(err)
		}
		col := at.Columns[c.Column]
		col.Sequence++
		col.AddedID = c.AddedID
		at.Columns[c.Column] = col
		at.Last = c.AddedID
		c.Sequence = col.Sequence
		c.Body = []byte(`{"a":1}`)
		column, merged := s.Encode(trips, &c, record.JSON)
		for _, m := range []cdc.Message{column, merged} {
			if err := s.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		newest[c.Column] = column
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for c, m := range newest {
		col := at.Columns[c]
		col.Offset = m.Offset()
		at.Columns[c] = col
	}
	err := s.Commit(t.Context(), cdc.Commit{
		Shards:  map[cdc.ShardKey]position.Shard{shard2: at},
		Cluster: position.Cluster{Term: 1, State: position.Open, Node: "n1", TailerMark: "m1", GTID: "0-1-5"},
		Beats:   []cdc.Beat{{Cluster: "c1", Beat: 7, WrittenAt: time.Unix(200, 0).UTC()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestPositionsComeBackAndNameTheirRecords(t *testing.T) {
	p := newPublisher(t)
	s, pos := openSession(t, p)
	if pos.Cluster != nil || len(pos.Shards) != 0 {
		t.Errorf("%+v", pos)
	}
	at := publishAll(t, s, newTable(t, "BASE", "BASE", "STATUS", "BASE"))
	next, pos := openSession(t, p)
	if pos.Cluster == nil || pos.Cluster.GTID != "0-1-5" || pos.Shards[shard2].Last != 4 || pos.Shards[shard2].Columns["BASE"].Sequence != 3 {
		t.Errorf("%+v", pos)
	}
	ask := func(change func(*position.Shard)) cdc.Verified {
		t.Helper()
		v := pos.Shards[shard2]
		v.Columns = map[string]position.Column{"BASE": at.Columns["BASE"], "STATUS": at.Columns["STATUS"]}
		change(&v)
		out, err := next.Verify(t.Context(), map[cdc.ShardKey]cdc.VerifyShard{shard2: {Datastore: trips, Position: v}})
		if err != nil {
			t.Fatal(err)
		}
		return out[shard2]
	}
	if v := ask(func(*position.Shard) {}); v.Err != nil || v.Last.AddedID != 4 || v.Last.Column != "BASE" {
		t.Errorf("%+v", v)
	}
	for name, change := range map[string]func(*position.Column){
		"another offset":   func(c *position.Column) { c.Offset-- },
		"behind the end":   func(c *position.Column) { c.Offset = 1000 },
		"another sequence": func(c *position.Column) { c.Sequence++ },
		"another cell":     func(c *position.Column) { c.AddedID-- },
	} {
		v := ask(func(s *position.Shard) {
			c := s.Columns["BASE"]
			change(&c)
			s.Columns["BASE"] = c
		})
		if !errors.Is(v.Err, cdc.ErrTailLost) || !strings.Contains(v.Err.Error(), "--datastore trips --shard 2") {
			t.Errorf("%s: %v", name, v.Err)
		}
	}
	// A merged topic that was off for a while is no loss, as long as what it
	// had is there: the tailer catches up with it.
	for offset, ok := range map[int64]bool{1: true, 2: false, 1000: false} {
		v := ask(func(s *position.Shard) {
			s.Columns[position.Merged] = position.Column{Sequence: 2, AddedID: 2, Offset: offset}
		})
		if (v.Err == nil) != ok || ok && v.Last.AddedID != 4 {
			t.Errorf("merged topic up to added_id 2, at offset %d: %+v", offset, v)
		}
	}
	// The older session learns that it is fenced.
	if err := s.Commit(t.Context(), cdc.Commit{Cluster: position.Cluster{State: position.Open}}); !errors.Is(err, cdc.ErrFenced) {
		t.Errorf("the older session commits: %v", err)
	}
}

// The partition of the positions joins a transaction with the first cell, and what
// it then holds is the position that stands: nothing of the cells that come.
func TestPositionsJoinWithTheFirstCell(t *testing.T) {
	p := newPublisher(t)
	first, _ := openSession(t, p)
	publishAll(t, first, newTable(t, "BASE"))
	s, was := openSession(t, p)
	end := func() int64 {
		t.Helper()
		o, err := p.adm.Offsets(t.Context(), p.positionsTopic())
		if err != nil {
			t.Fatal(err)
		}
		return o[0].End
	}
	before := end()
	cell := newTable(t, "BASE", "BASE")[1]
	m, _ := s.Encode(trips, &cell, record.Stored)
	for range 2 {
		if err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, _ = s.Encode(trips, &cell, record.Stored)
	}
	if n := end() - before; n != 1 {
		t.Errorf("%d records of positions with two cells, want one", n)
	}
	now := *was.Cluster
	now.GTID = "0-1-77"
	if err := s.Commit(t.Context(), cdc.Commit{Cluster: now}); err != nil {
		t.Fatal(err)
	}
	if s.stands == nil || s.stands.GTID != now.GTID || s.joined {
		t.Errorf("after the commit: %+v, joined %v", s.stands, s.joined)
	}
	cell.AddedID++
	m, _ = s.Encode(trips, &cell, record.Stored)
	if err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Given up, or committed: the position is the one that stood.
	_, pos := openSession(t, p)
	if pos.Cluster == nil || pos.Cluster.GTID != now.GTID {
		t.Errorf("%+v, want %s", pos.Cluster, now.GTID)
	}
}

func TestFirstOpenIsWrittenOnce(t *testing.T) {
	p := newPublisher(t)
	var g errgroup.Group
	written := make(chan bool, 8)
	for range 4 {
		g.Go(func() error {
			ok, err := p.WriteFirstOpen(t.Context(), "n1", "u1")
			if errors.Is(err, cdc.ErrFenced) {
				return nil // another call was later; it has written, or will
			}
			written <- ok
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	close(written)
	n := 0
	for ok := range written {
		if ok {
			n++
		}
	}
	// What was committed just now: the broker answers before the markers are
	// written, so Positions may not see it yet.
	pos, err := p.Standing(t.Context())
	if err != nil || n > 1 || pos.Cluster == nil || pos.Cluster.State != position.Open || pos.Cluster.Term != cellog.FirstTerm {
		t.Errorf("written %d times: %+v, %v", n, pos.Cluster, err)
	}
}

// A client's first transaction must be committed when Commit says so. Without
// the producer's settle, one of a hundred or two was aborted on a busy machine,
// so this finds its absence only now and then.
func TestFirstOpenIsThere(t *testing.T) {
	cfg := kafka.Config{Addrs: kafkatest.Start(t).Addrs()}
	var g errgroup.Group
	for w := range 4 {
		g.Go(func() error {
			for i := range 10 {
				p, err := New(Config{Kafka: cfg, Cluster: "c1", Prefix: fmt.Sprintf("%s%d.%d.", kafkatest.Prefix(t), w, i)})
				if err != nil {
					return err
				}
				first, err1 := p.WriteFirstOpen(t.Context(), "n1", "u1")
				second, err2 := p.WriteFirstOpen(t.Context(), "n1", "u1")
				p.Close()
				if err := errors.Join(err1, err2); err != nil || !first || second {
					return fmt.Errorf("written %v, then %v: %v", first, second, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWatchWaitsForTheMark(t *testing.T) {
	p := newPublisher(t)
	s, _ := openSession(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Watch(ctx, "m1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("watch without beats: %v", err)
	}
	seen := make(chan error, 1)
	go func() { seen <- p.Watch(t.Context(), "m1") }()
	for {
		if err := s.Commit(t.Context(), cdc.Commit{Cluster: position.Cluster{Term: 1, State: position.Open, TailerMark: "m1"}, Beats: []cdc.Beat{{}}}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-seen:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestStrangePositionsAreRefused(t *testing.T) {
	for _, r := range []record.Record{
		{Key: []byte("shard/trips/x"), Value: []byte("{}")},
		{Key: []byte("cluster"), Value: []byte(`{"term":1,"new_field":2}`)},
		{Key: []byte("shard/trips/1"), Value: []byte(`rubbish`)},
	} {
		p := newPublisher(t)
		s, _ := openSession(t, p)
		if err := s.prod.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.prod.Send(t.Context(), kafka.NewMessage(p.positionsTopic(), 0, r)), s.prod.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
		// A commit is answered before its mark is in every partition.
		var err error
		for limit := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(limit); {
			_, err = p.Positions(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), p.positionsTopic()) {
			t.Errorf("key %s: %v", r.Key, err)
		}
	}
}

func TestRepairRefusesWhatItCannotMend(t *testing.T) {
	p := newPublisher(t)
	e := newTable(t, "BASE", "STATUS", "BASE")
	if _, err := p.Repair(t.Context(), trips, 1, e); err == nil {
		t.Error("repaired a shard of which nothing was published")
	}
	s, _ := openSession(t, p)
	publishAll(t, s, e)
	// The merged topic is gone.
	merged := cellog.MergedTopicName(p.cfg.Prefix, "trips")
	if err := p.adm.DeleteTopic(t.Context(), merged); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Repair(t.Context(), trips, 2, e[:2]); err == nil || !strings.Contains(err.Error(), "no added_id 3") {
		t.Errorf("repaired from a table that lacks a row: %v", err)
	}
	done, err := p.Repair(t.Context(), trips, 2, e)
	if err != nil || done[merged] != 3 || len(done) != 1 {
		t.Errorf("repaired %v, %v", done, err)
	}
	// A column's topic has a cell twice.
	s, _ = openSession(t, p)
	c := e[0]
	c.Sequence, c.Body = 1, []byte(`{"a":1}`)
	column, _ := s.Encode(trips, &c, record.JSON)
	if err := errors.Join(s.Send(t.Context(), column), s.Commit(t.Context(), cdc.Commit{Cluster: position.Cluster{Term: 1, State: position.Open}})); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Repair(t.Context(), trips, 2, e); err == nil || !strings.Contains(err.Error(), "delete the topic") {
		t.Errorf("repaired a topic with a cell twice: %v", err)
	}
}
