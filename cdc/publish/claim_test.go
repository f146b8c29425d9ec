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
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// newOpened is a publisher of a cluster whose node n1 was opened in term 1.
func newOpened(t *testing.T) *Publisher {
	t.Helper()
	p := newPublisher(t)
	if _, err := p.WriteFirstOpen(t.Context(), "n1", "u1"); err != nil {
		t.Fatal(err)
	}
	return p
}

func mustClaim(t *testing.T, p *Publisher, req ClaimRequest) *Claim {
	t.Helper()
	c, err := p.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// cluster is the newest record, as those see it who do not wait.
func cluster(t *testing.T, p *Publisher) position.Cluster {
	t.Helper()
	pos, err := p.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return *pos.Cluster
}

// atPoint calls f once, the next time that a failpoint is hit.
func atPoint(t *testing.T, point string, f func()) {
	t.Helper()
	done := false
	failpoint.Set(func(name string) bool {
		if name == point && !done {
			done = true
			f()
		}
		return false
	})
	t.Cleanup(func() {
		failpoint.Set(nil)
		if !done {
			t.Errorf("never came to %s", point)
		}
	})
}

func TestClaimFencesTheTailerAndOpens(t *testing.T) {
	p := newPublisher(t)
	tailer, _ := openSession(t, p)
	was := publishAll(t, tailer, newTable(t, "BASE", "STATUS"))
	// What is open when the claim comes is aborted.
	if err := tailer.prod.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tailer.prod.Send(t.Context(), kafka.NewMessage(p.positionsTopic(), 0, shardRecord(position.Shard{Owner: "c1", Epoch: 1, First: 1, Last: 77}))); err != nil {
		t.Fatal(err)
	}
	if err := tailer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := mustClaim(t, p, ClaimRequest{Expect: 1, Above: 4, Mark: "a"})
	if c.Term() != 5 || c.Previous().Term != 1 || c.Previous().TailerMark != "m1" || c.Positions()[shard2].Last != 2 {
		t.Errorf("term %d, before %+v, positions %+v", c.Term(), c.Previous(), c.Positions())
	}
	if err := tailer.Commit(t.Context(), cdc.Commit{Cluster: position.Cluster{Term: 1, State: position.Open}}); !errors.Is(err, cdc.ErrFenced) {
		t.Errorf("the tailer commits: %v", err)
	}
	if now := cluster(t, p); now.State != position.Claimed || now.Term != 5 || now.ClaimMark != "a" || now.Node != "n1" || now.TailerMark != "" || now.GTID != "" {
		t.Errorf("%+v", now)
	}
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	shard1 := cdc.ShardKey{Datastore: "trips", Shard: 1}
	if err := c.Open(t.Context(), OpenRequest{Node: "n2", ServerUUID: "u2", First: map[cdc.ShardKey]cellog.AddedID{shard2: 2}}); err == nil || !strings.Contains(err.Error(), "2 are published") {
		t.Errorf("an epoch begins below what is published: %v", err)
	}
	open := OpenRequest{Node: "n2", ServerUUID: "u2", Alone: true, First: map[cdc.ShardKey]cellog.AddedID{shard1: 1, shard2: 9}}
	for range 2 { // again: it is done already
		if err := c.Open(t.Context(), open); err != nil {
			t.Fatal(err)
		}
	}
	pos, err := p.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if now := *pos.Cluster; now.State != position.Open || now.Term != 5 || now.Node != "n2" || now.ServerUUID != "u2" || !now.Alone || now.ClaimMark != "" || now.GTID != "" {
		t.Errorf("%+v", now)
	}
	if s := pos.Shards[shard2]; s.Owner != "c1" || s.Epoch != 5 || s.First != 9 || s.Last != 2 || s.Columns["STATUS"] != was.Columns["STATUS"] || len(s.Columns) != 2 {
		t.Errorf("%+v", s)
	}
	if s := pos.Shards[shard1]; s.Owner != "c1" || s.Epoch != 5 || s.First != 1 || s.Last != 0 {
		t.Errorf("%+v", s)
	}
	if err := c.Check(t.Context()); !errors.Is(err, ErrClaimLost) {
		t.Errorf("the claim stands although it was opened: %v", err)
	}
	// The next term is above the shards' epochs, too.
	if next := mustClaim(t, p, ClaimRequest{Mark: "b"}); next.Term() != 6 || next.Previous().Node != "n2" {
		t.Errorf("term %d, before %+v", next.Term(), next.Previous())
	}
}

func TestClaimIsRefused(t *testing.T) {
	p := newPublisher(t)
	if _, err := p.Claim(t.Context(), ClaimRequest{Mark: "a"}); !errors.Is(err, ErrNeverOpened) {
		t.Errorf("claimed a cluster that was never opened: %v", err)
	}
	if _, err := p.WriteFirstOpen(t.Context(), "n1", "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(t.Context(), ClaimRequest{Expect: 3, Mark: "a"}); !errors.Is(err, ErrTermChanged) || !strings.Contains(err.Error(), "term 1") || !strings.Contains(err.Error(), "term 3") {
		t.Errorf("another term than expected: %v", err)
	}
	if _, err := p.Claim(t.Context(), ClaimRequest{}); err == nil {
		t.Error("claimed without a mark")
	}
	if now := cluster(t, p); now.State != position.Open || now.Term != 1 {
		t.Errorf("%+v", now)
	}
}

func TestClaimThatWasLeftIsTakenOver(t *testing.T) {
	p := newOpened(t)
	left := mustClaim(t, p, ClaimRequest{Mark: "a"})
	c := mustClaim(t, p, ClaimRequest{Expect: left.Term(), Mark: "b"})
	if c.Term() != left.Term()+1 || c.Previous().ClaimMark != "a" || c.Previous().Node != "n1" {
		t.Errorf("term %d, before %+v", c.Term(), c.Previous())
	}
	// The one who left it comes back.
	if err := left.Check(t.Context()); !errors.Is(err, ErrClaimLost) {
		t.Errorf("check: %v", err)
	}
	if err := left.Open(t.Context(), OpenRequest{Node: "n2", ServerUUID: "u2"}); !errors.Is(err, ErrClaimLost) {
		t.Errorf("open: %v", err)
	}
	// That has fenced the one who took over, whose claim stands.
	if err := c.Open(t.Context(), OpenRequest{Node: "n3", ServerUUID: "u3"}); err != nil {
		t.Error(err)
	}
	if now := cluster(t, p); now.Term != c.Term() || now.Node != "n3" {
		t.Errorf("%+v", now)
	}
}

func TestClaimGoesOnWhenATailerFencesIt(t *testing.T) {
	for _, point := range []string{"publish/claim-initialised", "publish/claim-before-end", "publish/before-open", "publish/open-before-end"} {
		t.Run(point, func(t *testing.T) {
			p := newOpened(t)
			atPoint(t, point, func() {
				s, pos, err := p.Open(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if pos.Cluster.State != position.Open && !strings.Contains(point, "open") {
					t.Errorf("%+v", pos.Cluster)
				}
				s.Close(t.Context())
			})
			c := mustClaim(t, p, ClaimRequest{Expect: 1, Mark: "a"})
			if err := c.Open(t.Context(), OpenRequest{Node: "n2", ServerUUID: "u2", First: map[cdc.ShardKey]cellog.AddedID{shard2: 1}}); err != nil {
				t.Fatal(err)
			}
			if now := cluster(t, p); now.State != position.Open || now.Term != 2 || now.Node != "n2" {
				t.Errorf("%+v", now)
			}
		})
	}
}

// The answer to an open is lost: whoever asks again learns that it was done.
func TestOpenThatWasDoneIsFound(t *testing.T) {
	p := newOpened(t)
	c := mustClaim(t, p, ClaimRequest{Mark: "a"})
	open := OpenRequest{Node: "n2", ServerUUID: "u2"}
	if err := c.Open(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	c.Close(t.Context())
	tailer, pos := openSession(t, p)
	pos.Cluster.TailerMark, pos.Cluster.GTID = "m", "0-1-1"
	if err := tailer.Commit(t.Context(), cdc.Commit{Cluster: *pos.Cluster}); err != nil {
		t.Fatal(err)
	}
	if err := c.Open(t.Context(), open); err != nil {
		t.Error(err)
	}
	if err := c.Open(t.Context(), OpenRequest{Node: "n3", ServerUUID: "u3"}); !errors.Is(err, ErrClaimLost) {
		t.Errorf("opened another node: %v", err)
	}
	if now := cluster(t, p); now.Node != "n2" || now.GTID != "0-1-1" {
		t.Errorf("%+v", now)
	}
}

func TestPromotersAtOnceOpenOneNodeATerm(t *testing.T) {
	p := newOpened(t)
	var g errgroup.Group
	opened := make(chan cellog.Term, 8)
	for i := range 4 {
		g.Go(func() error {
			c, err := p.Claim(t.Context(), ClaimRequest{Expect: 1, Mark: fmt.Sprint("m", i)})
			if errors.Is(err, ErrTermChanged) || errors.Is(err, cdc.ErrFenced) {
				return nil
			}
			if err != nil {
				return err
			}
			defer c.Close(context.Background())
			err = c.Open(t.Context(), OpenRequest{Node: fmt.Sprint("n", i), ServerUUID: "u"})
			if errors.Is(err, ErrClaimLost) || errors.Is(err, cdc.ErrFenced) {
				return nil
			}
			opened <- c.Term()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	close(opened)
	var terms []cellog.Term
	for term := range opened {
		terms = append(terms, term)
	}
	// All expected term 1, so one claim was made.
	if now := cluster(t, p); len(terms) > 1 || len(terms) == 1 && (now.State != position.Open || now.Term != terms[0]) || now.Term != 2 {
		t.Errorf("opened %v; %+v", terms, now)
	}
}

// Cells are in several columns, among other shards' and aborted ones, over
// several pages.
func TestClaimReadsWhatIsPublished(t *testing.T) {
	p := newPublisher(t)
	const cells = 2*cellsPage + 50
	columns := []string{"BASE", "STATUS", "NOTES"}
	began := time.Unix(1000, 0).UTC()
	at := position.Shard{Owner: "c1", Epoch: 1, First: 1, Columns: map[string]position.Column{}}
	var want []cellog.Cell
	s, _ := openSession(t, p)
	for _, c := range columns {
		if err := s.Topic(t.Context(), trips, c); err != nil {
			t.Fatal(err)
		}
	}
	send := func(shard cellog.ShardID, id cellog.AddedID, column string, seq cellog.Sequence, text string, keep bool) cdc.Message {
		c := cellog.Cell{Key: cellog.Key{Row: uuid.New(), Column: column, Ref: 1}, Datastore: "trips", Shard: shard, AddedID: id, Epoch: 1,
			Sequence: seq, Body: []byte(text), CreatedAt: began.Add(time.Duration(id/2) * 1500 * time.Microsecond)} // two at a time
		// The forms change from cell to cell; what comes back is JSON.
		stored, err := body.Encode(nil, c.Body, body.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		sent := c
		var form record.Form
		if sent.Body, form, err = record.AppendValue(nil, stored, []record.Form{record.JSON, record.MessagePack, record.Stored}[id%3]); err != nil {
			t.Fatal(err)
		}
		m, merged := s.Encode(trips, &sent, form)
		if err := errors.Join(s.Send(t.Context(), m), s.Send(t.Context(), merged)); err != nil {
			t.Fatal(err)
		}
		if keep {
			want = append(want, c)
		}
		return m
	}
	for id := cellog.AddedID(1); id <= cells; {
		// A transaction that is aborted, by the next session.
		for i := range cellog.AddedID(3) {
			send(2, id+i, columns[i], at.Columns[columns[i]].Sequence+1, `{"aborted":1}`, false)
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, _ = openSession(t, p)
		newest := map[string]cdc.Message{}
		for range 90 {
			if id > cells {
				break
			}
			column := columns[int(id)%2]
			if id%100 == 7 {
				column = columns[2]
			}
			send(0, id, column, at.Columns[column].Sequence+1, `{"other":1}`, false) // in the same partition
			newest[column] = send(2, id, column, at.Columns[column].Sequence+1, fmt.Sprintf(`{"id":%d}`, id), true)
			at.Columns[column] = position.Column{Sequence: at.Columns[column].Sequence + 1, AddedID: id}
			at.Last = id
			id++
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for column, m := range newest {
			col := at.Columns[column]
			col.Offset = m.Offset()
			at.Columns[column] = col
		}
		if err := s.Commit(t.Context(), cdc.Commit{Shards: map[cdc.ShardKey]position.Shard{shard2: at}, Cluster: position.Cluster{Term: 1, State: position.Open, Node: "n1"}}); err != nil {
			t.Fatal(err)
		}
	}
	// Left open when the claim comes.
	send(2, cells+1, "BASE", at.Columns["BASE"].Sequence+1, `{"aborted":1}`, false)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := mustClaim(t, p, ClaimRequest{Mark: "a"})
	for _, after := range []cellog.AddedID{0, 1, 2, 3, cells / 2, cells - cellsPage, cells - 1, cells} {
		var since time.Time
		if after > 0 {
			since = want[after-1].CreatedAt
		}
		next := after
		err := c.Cells(t.Context(), trips, 2, after, since, func(have *cellog.Cell) error {
			if next >= cells {
				return fmt.Errorf("added_id %d after the last", have.AddedID)
			}
			w := want[next]
			next++
			if have.AddedID != w.AddedID || have.Key != w.Key || have.Sequence != w.Sequence || have.Epoch != w.Epoch || string(have.Body) != string(w.Body) || !have.CreatedAt.Equal(w.CreatedAt) {
				return fmt.Errorf("%+v, want %+v", have, w)
			}
			return nil
		})
		if err != nil || next != cells {
			t.Errorf("after %d: up to %d: %v", after, next, err)
		}
	}
	stop := errors.New("stop")
	if err := c.Cells(t.Context(), trips, 2, 0, time.Time{}, func(*cellog.Cell) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	// A column's topic is gone.
	if err := p.adm.DeleteTopic(t.Context(), cellog.TopicName(p.cfg.Prefix, "trips", "NOTES")); err != nil {
		t.Fatal(err)
	}
	if err := c.Cells(t.Context(), trips, 2, 0, time.Time{}, func(*cellog.Cell) error { return nil }); !errors.Is(err, cdc.ErrTailLost) {
		t.Errorf("a topic is gone: %v", err)
	}
}

func shardRecord(s position.Shard) record.Record {
	return record.Record{Key: []byte(position.ShardKey(shard2.Datastore, shard2.Shard)), Value: position.Marshal(s), Time: time.Now()}
}
