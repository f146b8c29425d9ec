package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	p         *Publisher
	s         *session
	record    position.Cluster
	previous  position.Cluster
	positions cdc.Positions
}

// Claim fences the cluster's tailer and any other promoter, and writes {claimed,
// next term, mark}. A claim that stands already is taken over, with the next
// term. Errors: ErrTermChanged, ErrNeverOpened, or what Kafka said; then the
// claim may be there, which the next one takes over.
func (p *Publisher) Claim(ctx context.Context, req ClaimRequest) (*Claim, error) {
	if req.Mark == "" {
		return nil, errors.New("publish: claim: mark is empty")
	}
	for try := 1; ; try++ {
		c, err := p.claimOnce(ctx, req)
		if !errors.Is(err, cdc.ErrFenced) || try == claimTries {
			return c, err
		}
		// The claim was not written, for a fenced commit is aborted.
	}
}

func (p *Publisher) claimOnce(ctx context.Context, req ClaimRequest) (*Claim, error) {
	sess, pos, err := p.Open(ctx)
	if err != nil {
		return nil, err
	}
	c := &Claim{p: p, s: sess.(*session), positions: pos}
	written := false
	defer func() {
		if !written {
			c.Close(ctx)
		}
	}()
	failpoint.Hit("publish/claim-initialised")
	if pos.Cluster == nil {
		return nil, fmt.Errorf("cluster %s: %w", p.cfg.Cluster, ErrNeverOpened)
	}
	c.previous = *pos.Cluster
	if req.Expect != 0 && c.previous.Term != req.Expect {
		return nil, fmt.Errorf("cluster %s: %w: it is %s in term %d, expected was term %d", p.cfg.Cluster, ErrTermChanged, c.previous.State, c.previous.Term, req.Expect)
	}
	term := max(c.previous.Term, req.Above)
	for _, s := range pos.Shards {
		term = max(term, cellog.Term(s.Epoch))
	}
	c.record = position.Cluster{
		Term: term + 1, State: position.Claimed, Node: c.previous.Node, ServerUUID: c.previous.ServerUUID,
		ClaimMark: req.Mark, UpdatedAt: time.Now().UTC(),
	}
	if err := c.s.Commit(ctx, cdc.Commit{Cluster: c.record}); err != nil {
		return nil, err
	}
	written = true
	return c, nil
}

// Term is the claim's.
func (c *Claim) Term() cellog.Term { return c.record.Term }

// Previous is the record that stood before the claim: an open one, or a claim
// that was left.
func (c *Claim) Previous() position.Cluster { return c.previous }

// Positions are what is final of each shard. While the claim stands nobody
// moves them.
func (c *Claim) Positions() map[cdc.ShardKey]position.Shard { return c.positions.Shards }

// Check returns nil while the claim stands, ErrClaimLost when it does not, or
// why that is not known.
func (c *Claim) Check(ctx context.Context) error {
	pos, err := c.p.standing(ctx)
	if err != nil {
		return err
	}
	return c.stands(pos)
}

func (c *Claim) stands(pos cdc.Positions) error {
	if now := pos.Cluster; now == nil || now.State != position.Claimed || now.Term != c.record.Term || now.ClaimMark != c.record.ClaimMark {
		return fmt.Errorf("cluster %s, term %d: %w", c.p.cfg.Cluster, c.record.Term, ErrClaimLost)
	}
	return nil
}

// Cells calls f for the published cells of a shard with an added_id above after,
// in order; their bodies are JSON. since is when the cell at after was created:
// no later one is older, so older records are not read. All of them are held in
// memory: they are what no node of a cluster has, so few. It returns an error if
// one of them is missing.
func (c *Claim) Cells(ctx context.Context, ds *cdc.Datastore, shard cellog.ShardID, after cellog.AddedID, since time.Time, f func(*cellog.Cell) error) error {
	k := cdc.ShardKey{Datastore: ds.Name, Shard: shard}
	at := c.positions.Shards[k]
	found := map[cellog.AddedID]cellog.Cell{}
	partition := cellog.PartitionOf(shard, ds.Partitions)
	for column, p := range at.Columns {
		if column == position.Merged || p.AddedID <= after {
			continue
		}
		topic := cellog.TopicName(c.p.cfg.Prefix, ds.Name, column)
		// Records carry milliseconds.
		from, err := c.p.adm.OffsetAt(ctx, topic, partition, since.Truncate(time.Millisecond))
		if err != nil {
			return convert(err)
		}
		err = kafka.ReadRange(ctx, c.p.cfg.Kafka, topic, partition, from, p.Offset+1, func(r kafka.Fetched) error {
			cell, err := record.Decode(r.Record)
			if err != nil {
				return fmt.Errorf("%s, partition %d, offset %d: %w", topic, partition, r.Offset, err)
			}
			if cell.Datastore == ds.Name && cell.Shard == shard && cell.AddedID > after {
				found[cell.AddedID] = cell
			}
			return nil
		})
		if err != nil {
			return convert(err)
		}
	}
	for i, id := range slices.Sorted(maps.Keys(found)) {
		if want := after + cellog.AddedID(i+1); id != want {
			return fmt.Errorf("shard %s: Kafka has no added_id %d, but %d", k, want, id)
		}
		cell := found[id]
		if err := f(&cell); err != nil {
			return err
		}
	}
	if last := after + cellog.AddedID(len(found)); last < at.Last {
		return fmt.Errorf("shard %s: Kafka has no added_id %d any more, of %d that were published", k, last+1, at.Last)
	}
	return nil
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
// each shard; the tailer goes on from there. On an error it may have been done:
// the positions tell.
func (c *Claim) Open(ctx context.Context, req OpenRequest) error {
	open := c.record
	open.State, open.Node, open.ServerUUID, open.Alone = position.Open, req.Node, req.ServerUUID, req.Alone
	open.ClaimMark, open.UpdatedAt = "", time.Now().UTC()
	shards := make(map[cdc.ShardKey]position.Shard, len(req.First))
	for k, first := range req.First {
		s := c.positions.Shards[k]
		s.Owner, s.Epoch, s.First = c.p.cfg.Cluster, cellog.Epoch(c.record.Term), first
		shards[k] = s
	}
	for try := 1; ; try++ {
		failpoint.Hit("publish/before-open")
		err := c.s.Commit(ctx, cdc.Commit{Cluster: open, Shards: shards})
		if !errors.Is(err, cdc.ErrFenced) || try == claimTries {
			return err
		}
		// A tailer that had read the positions before the claim. It has seen
		// the claim by now, or will.
		c.s.Close(ctx)
		sess, pos, err := c.p.Open(ctx)
		if err != nil {
			return err
		}
		c.s = sess.(*session)
		if err := c.stands(pos); err != nil {
			return err
		}
	}
}

// Close lets the producer go. A claim that was not opened stays in Kafka until
// another one takes it over.
func (c *Claim) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	c.s.Close(ctx)
}
