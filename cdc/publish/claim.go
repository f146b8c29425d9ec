package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

var (
	// ErrTermChanged is returned by Claim when the cluster is of another term
	// than was expected: somebody was faster.
	ErrTermChanged = errors.New("the cluster is of another term than expected")

	// ErrClaimLost is returned by a Claim's methods once another claim, or an
	// open, stands in Kafka: whoever holds it must do nothing more.
	ErrClaimLost = errors.New("the claim does not stand any more")

	// ErrNeverOpened is returned by Claim for a cluster without positions.
	ErrNeverOpened = errors.New("no node was opened yet: `cellog datastore create` opens the first")
)

// claimTries bounds how often a claim goes on after a tailer, which had read the
// positions before the claim was there, has fenced it.
const claimTries = 5

// cellsPage is how many cells Claim.Cells holds at a time.
const cellsPage = 200

// ClaimRequest says how to claim.
type ClaimRequest struct {
	// Expect is the term that the cluster must be of; zero: any.
	Expect cellog.Term
	// Above is a term that the new one must exceed, besides the cluster's and
	// the epochs in its positions.
	Above cellog.Term
	// Mark is the claimant's own, random. Required.
	Mark string
}

// Claim is a claim to say which node of a cluster is its master. While it
// stands, the cluster's tailer is fenced and waits. One goroutine may use it.
type Claim struct {
	p        *Publisher
	s        *session // nil: broken, or closed
	now      cdc.Positions
	record   position.Cluster
	previous position.Cluster
}

// Claim fences the cluster's tailer and any other promoter, and writes {claimed,
// next term, mark}. A claim that stands already is taken over, with the next
// term. When it returns, all who read the positions see the claim. Errors:
// ErrTermChanged, ErrNeverOpened, or what Kafka said; then the claim may be
// there, which the next one takes over.
func (p *Publisher) Claim(ctx context.Context, req ClaimRequest) (*Claim, error) {
	if req.Mark == "" {
		return nil, errors.New("publish: claim: mark is empty")
	}
	c := &Claim{p: p}
	written := false
	defer func() {
		if !written {
			c.Close(ctx)
		}
	}()
	err := c.commit(ctx, "publish/claim-before-end", func() (cdc.Commit, bool, error) {
		failpoint.Hit("publish/claim-initialised")
		if c.record.Term != 0 && c.stands(c.now) == nil {
			return cdc.Commit{}, true, nil
		}
		err := c.next(req)
		return cdc.Commit{Cluster: c.record}, false, err
	})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("publish/claim-written")
	written = true
	return c, nil
}

// next makes the claim's record.
func (c *Claim) next(req ClaimRequest) error {
	cluster := c.p.cfg.Cluster
	if c.now.Cluster == nil {
		return fmt.Errorf("cluster %s: %w", cluster, ErrNeverOpened)
	}
	c.previous = *c.now.Cluster
	if req.Expect != 0 && c.previous.Term != req.Expect {
		return fmt.Errorf("cluster %s: %w: it is %s in term %d, expected was term %d", cluster, ErrTermChanged, c.previous.State, c.previous.Term, req.Expect)
	}
	term := max(c.previous.Term, req.Above)
	for _, s := range c.now.Shards {
		term = max(term, cellog.Term(s.Epoch))
	}
	c.record = position.Cluster{
		Term: term + 1, State: position.Claimed, Node: c.previous.Node, ServerUUID: c.previous.ServerUUID,
		ClaimMark: req.Mark, UpdatedAt: time.Now().UTC(),
	}
	return nil
}

// commit opens a producer if there is none, and commits what of makes of the
// positions that then stand, unless that is done already. Fenced by somebody who
// had read the positions before, it does so again. It returns when the record
// can be read: from the broker's answer until its marker is written, a reader of
// what is committed would still find the one before.
func (c *Claim) commit(ctx context.Context, beforeEnd string, of func() (commit cdc.Commit, done bool, err error)) error {
	for try := 1; ; try++ {
		if c.s == nil {
			handed, err := c.p.handedOver(ctx)
			if err != nil {
				return err
			}
			sess, pos, err := c.p.Open(ctx)
			if err != nil {
				return err
			}
			c.s, c.now = sess.(*session), pos
			adopt(&c.now, handed) // it is the cluster's own
		}
		commit, done, err := of()
		if err != nil {
			return err
		}
		if !done {
			c.s.beforeEnd = beforeEnd
			err = c.s.Commit(ctx, commit)
		}
		if err == nil {
			if !done {
				c.now.Cluster = &commit.Cluster
			}
			return c.p.settled(ctx)
		}
		c.Close(ctx)
		if !errors.Is(err, cdc.ErrFenced) || try == claimTries {
			return err
		}
	}
}

// Term is the claim's.
func (c *Claim) Term() cellog.Term { return c.record.Term }

// Previous is the record that stood before the claim: an open one, or a claim
// that was left.
func (c *Claim) Previous() position.Cluster { return c.previous }

// Positions are what is final of each shard. While the claim stands nobody
// moves them.
func (c *Claim) Positions() map[cdc.ShardKey]position.Shard { return c.now.Shards }

// Check returns nil while the claim stands; ErrClaimLost when it does not, also
// because it was opened; or why that is not known.
func (c *Claim) Check(ctx context.Context) error {
	pos, err := c.p.Standing(ctx)
	if err != nil {
		return err
	}
	return c.stands(pos)
}

func (c *Claim) stands(pos cdc.Positions) error {
	now := pos.Cluster
	switch {
	case now == nil:
		return fmt.Errorf("cluster %s, term %d: %w: its positions topic is empty", c.p.cfg.Cluster, c.record.Term, ErrClaimLost)
	case now.State != position.Claimed || now.Term != c.record.Term || now.ClaimMark != c.record.ClaimMark:
		return fmt.Errorf("cluster %s, term %d: %w: term %d is %s", c.p.cfg.Cluster, c.record.Term, ErrClaimLost, now.Term, now.State)
	}
	return nil
}

// columnRest is what Cells has not read of a column.
type columnRest struct {
	place kafka.Place // Offset is where to go on
	last  int64       // the offset of the last record that counts
}

// Cells calls f for the published cells of a shard with an added_id above after,
// in order; their bodies are JSON. since is when the cell at after was created:
// no later one is older, so older records are not read. It returns f's error, or
// one that names the first cell that is missing.
func (c *Claim) Cells(ctx context.Context, ds *cdc.Datastore, shard cellog.ShardID, after cellog.AddedID, since time.Time, f func(*cellog.Cell) error) error {
	k := cdc.ShardKey{Datastore: ds.Name, Shard: shard}
	at := c.now.Shards[k]
	var rests []*columnRest
	for column, p := range at.Columns {
		if column == position.Merged || p.AddedID <= after {
			continue
		}
		r, err := c.rest(ctx, k, ds, column, p, since)
		if err != nil {
			return err
		}
		rests = append(rests, r)
	}
	for after < at.Last {
		page := make([]cellog.Cell, min(cellsPage, at.Last-after))
		for _, r := range rests {
			if err := c.readPage(ctx, k, r, after, page); err != nil {
				return err
			}
		}
		for i := range page {
			if want := after + cellog.AddedID(i) + 1; page[i].AddedID != want {
				return fmt.Errorf("shard %s: Kafka does not have added_id %d, of %d that were published: it has expired, or was deleted", k, want, at.Last)
			}
			if err := f(&page[i]); err != nil {
				return err
			}
		}
		after += cellog.AddedID(len(page))
	}
	return nil
}

// rest finds where a column's records since a time begin.
func (c *Claim) rest(ctx context.Context, k cdc.ShardKey, ds *cdc.Datastore, column string, p position.Column, since time.Time) (*columnRest, error) {
	s := &session{p: c.p}
	place := s.place(k, ds, column, p)
	offsets, err := c.p.adm.Offsets(ctx, place.Topic)
	if err != nil && !errors.Is(err, kafka.ErrUnknownTopic) {
		return nil, convert(err)
	}
	if p.Offset >= offsets[place.Partition].End { // it would be waited for
		return nil, s.lost(k, place, "it ends before")
	}
	r := &columnRest{place: place, last: p.Offset}
	// Records carry milliseconds.
	r.place.Offset, err = c.p.adm.OffsetAt(ctx, place.Topic, place.Partition, since.Truncate(time.Millisecond))
	return r, convert(err)
}

// readPage puts a column's cells that belong into a page there: the one with
// added_id after+1 comes first.
func (c *Claim) readPage(ctx context.Context, k cdc.ShardKey, r *columnRest, after cellog.AddedID, page []cellog.Cell) error {
	full := errors.New("the next cell is of a later page")
	err := kafka.ReadRange(ctx, c.p.cfg.Kafka, r.place.Topic, r.place.Partition, r.place.Offset, r.last+1, func(f kafka.Fetched) error {
		cell, err := record.Decode(f.Record)
		if err != nil {
			return fmt.Errorf("%s, partition %d, offset %d: %w", f.Topic, f.Partition, f.Offset, err)
		}
		if cell.Datastore == k.Datastore && cell.Shard == k.Shard && cell.AddedID > after {
			i := cell.AddedID - after - 1
			if i >= cellog.AddedID(len(page)) {
				r.place.Offset = f.Offset
				return full
			}
			page[i] = cell
		}
		return nil
	})
	if errors.Is(err, full) {
		return nil
	}
	r.place.Offset = r.last + 1
	return convert(err)
}

// OpenRequest says what a claim opens.
type OpenRequest struct {
	// Node and ServerUUID name the master.
	Node, ServerUUID string
	// Alone says that no node follows it.
	Alone bool
	// First are the first added_ids of the new epoch, which is the claim's
	// term, of every shard that the cluster owns.
	First map[cdc.ShardKey]cellog.AddedID
}

// Open ends the claim: in one transaction it names the master and the epoch of
// each shard. The tailer goes on from there; what of a shard is published stays
// as it is. When it returns nil, all who read the positions see it. Errors:
// ErrClaimLost, or what Kafka said; then it may have been done: open again, which
// does nothing if it was, or look with Publisher.Standing.
func (c *Claim) Open(ctx context.Context, req OpenRequest) error {
	open := c.record
	open.State, open.Node, open.ServerUUID, open.Alone = position.Open, req.Node, req.ServerUUID, req.Alone
	open.ClaimMark, open.UpdatedAt = "", time.Now().UTC()
	return c.commit(ctx, "publish/open-before-end", func() (cdc.Commit, bool, error) {
		failpoint.Hit("publish/before-open")
		// Nobody else opens the claim's term.
		if now := c.now.Cluster; now != nil && now.State == position.Open && now.Term == open.Term && now.Node == open.Node && now.ServerUUID == open.ServerUUID {
			return cdc.Commit{}, true, nil
		}
		if err := c.stands(c.now); err != nil {
			return cdc.Commit{}, false, err
		}
		shards, err := c.opened(req)
		return cdc.Commit{Cluster: open, Shards: shards}, false, err
	})
}

// opened makes the shards' records.
func (c *Claim) opened(req OpenRequest) (map[cdc.ShardKey]position.Shard, error) {
	shards := make(map[cdc.ShardKey]position.Shard, len(req.First))
	for k, first := range req.First {
		s := c.now.Shards[k]
		if first <= s.Last && !failpoint.Hit("promote/ungated") {
			return nil, fmt.Errorf("open %s: shard %s: its new epoch cannot begin at added_id %d, for %d are published", req.Node, k, first, s.Last)
		}
		s.Owner, s.Epoch, s.First = c.p.cfg.Cluster, cellog.Epoch(c.record.Term), first
		shards[k] = s
	}
	return shards, nil
}

// Close lets the producer go. A claim that was not opened stays in Kafka until
// another one takes it over.
func (c *Claim) Close(ctx context.Context) {
	if c.s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	c.s.Close(ctx)
	c.s = nil
}
