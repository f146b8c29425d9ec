package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage/mysql"
)

// names looks for what the request names, before anything is done: a claim without
// an open stops the cluster.
func (r Promote) names(cfg *config.Config) (*config.Cluster, error) {
	c, err := cfg.FindCluster(r.Cluster)
	if err != nil {
		return nil, err
	}
	if r.Node != "" {
		if _, err := c.FindNode(r.Node); err != nil {
			return nil, fmt.Errorf("--to: %w", err)
		}
	}
	for _, name := range r.Without {
		if _, err := cfg.FindCluster(name); err != nil {
			return nil, fmt.Errorf("--without: %w", err)
		}
	}
	return c, nil
}

// owned says whether the cluster owns a shard, so far as Kafka says.
func (p *promotion) owned(k cdc.ShardKey) bool {
	s, ok := p.claim.Positions()[k]
	return !ok || s.Owner == p.req.Cluster
}

// choose finds the candidate: the most advanced node of the epoch that was
// opened last. It returns the candidate's shards.
func (p *promotion) choose(ctx context.Context) ([]mysql.ShardHead, error) {
	type candidate struct {
		heads  []mysql.ShardHead
		sum    int64 // of its last added_ids
		epochs int64 // the sum of its epochs: higher where a promotion was left before it opened
		err    error
	}
	found := map[string]*candidate{}
	var g errgroup.Group
	old := p.claim.Previous()
	for name, db := range p.nodes {
		c := &candidate{}
		found[name] = c
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, applyTimeout)
			defer cancel()
			// A server that lost its disk is no candidate, though it answers.
			is, err := p.isNode(ctx, db)
			if c.err = err; err == nil && !is {
				c.err = errors.New("it has no data of the cluster")
			}
			if c.err == nil && name != old.Node {
				// It applies what it has: what is received and not applied
				// would be thrown away.
				c.err = mysqlreplica.StopReceiving(ctx, db)
				if c.err == nil {
					c.err = mysqlreplica.StartApplying(ctx, db)
				}
				if c.err == nil {
					c.err = mysqlreplica.WaitApplied(ctx, db)
				}
			}
			if c.err == nil {
				c.heads, c.err = mysql.Heads(ctx, db)
			}
			if c.err == nil {
				c.err = p.ofOpenedEpoch(c.heads)
			}
			for _, h := range c.heads {
				c.sum += int64(h.Last)
				c.epochs += int64(h.Epoch)
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	want := p.req.Node
	if n := p.nominated(); want == "" && n != "" && found[n].err == nil {
		p.say("%s takes writes in place of %s: it is nominated", n, old.Node)
		want = n
	}
	best := ""
	for _, n := range p.cluster.Nodes { // in a fixed order
		c := found[n.Name]
		if c == nil {
			continue
		}
		if c.err != nil {
			p.out.Left[n.Name] = c.err.Error()
			continue
		}
		better := func(b *candidate) bool {
			switch {
			case c.sum != b.sum:
				return c.sum > b.sum
			case c.epochs != b.epochs: // the others can follow it, and it not them
				return c.epochs > b.epochs
			case best == want:
				return false
			}
			return n.Name == want || n.Name == old.Node
		}
		if best == "" || better(found[best]) {
			best = n.Name
		}
	}
	if best == "" {
		return nil, fmt.Errorf("cluster %s: no node can become its master: %v", p.req.Cluster, p.out.Left)
	}
	if want == "" || want == best {
		p.out.Node = best
		p.say("%s is the candidate", best)
		return found[best].heads, nil
	}
	if err := found[want].err; err != nil {
		return nil, fmt.Errorf("node %s cannot become the master: %w", want, err)
	}
	p.say("%s is to become the master and lacks what %s has: it follows", want, best)
	heads, err := p.catchUp(ctx, p.nodes[want], p.nodes[best], best)
	if err != nil && p.req.Node == "" {
		// It was only nominated: it has something of its own, say.
		p.say("%s cannot follow %s, which is the candidate: %v", want, best, err)
		p.out.Node, p.out.Left[want] = best, err.Error()
		return found[best].heads, nil
	}
	p.out.Node = want
	return heads, err
}

// catchUp lets a node follow a more advanced one until it has the same.
func (p *promotion) catchUp(ctx context.Context, db, best *sql.DB, name string) ([]mysql.ShardHead, error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	src, err := p.source(name)
	if err != nil {
		return nil, err
	}
	gtids, err := mysqlreplica.GTIDs(ctx, best)
	if err != nil {
		return nil, err
	}
	if err := mysqlreplica.Follow(ctx, db, src); err != nil {
		return nil, err
	}
	if err := mysqlreplica.WaitForGTIDs(ctx, db, gtids); err != nil {
		return nil, err
	}
	if err := mysqlreplica.Stop(ctx, db); err != nil {
		return nil, err
	}
	return mysql.Heads(ctx, db)
}

// source is how another node follows one of the cluster.
func (p *promotion) source(node string) (mysqlreplica.Source, error) {
	a := p.cluster.Accounts.Replica
	if a.User == "" {
		return mysqlreplica.Source{}, fmt.Errorf("cluster %s has no accounts.replica in the configuration: re-point the node to %s yourself", p.req.Cluster, node)
	}
	n, err := p.cluster.FindNode(node)
	if err != nil {
		return mysqlreplica.Source{}, err
	}
	return mysqlreplica.Source{Addr: n.Addr, User: a.User, Password: a.Password.Reveal()}, nil
}

// ofOpenedEpoch refuses a node that may have followed a dead branch: one with a
// shard of an older epoch than Kafka names. A newer one is a promotion's that was
// left before it opened.
func (p *promotion) ofOpenedEpoch(heads []mysql.ShardHead) error {
	have := map[cdc.ShardKey]mysql.ShardHead{}
	for _, h := range heads {
		have[cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}] = h
	}
	for k, s := range p.claim.Positions() {
		if s.Owner != p.req.Cluster {
			continue
		}
		h, ok := have[k]
		switch {
		case !ok:
			return fmt.Errorf("it does not have shard %s", k)
		case h.Epoch < s.Epoch:
			return fmt.Errorf("its shard %s is of epoch %d, opened was epoch %d: rejoin it (`cellog cluster rejoin`)", k, h.Epoch, s.Epoch)
		}
	}
	return nil
}

// gate makes sure that the candidate holds all that is final, the same cells;
// what no node has comes back from Kafka. It returns the shards as they then are,
// those that the cluster owns.
func (p *promotion) gate(ctx context.Context, db *sql.DB, heads []mysql.ShardHead) ([]mysql.ShardHead, error) {
	datastores, err := datastoresOn(ctx, p.cfg, db)
	if err != nil {
		return nil, err
	}
	ungated := failpoint.Hit("promote/ungated") // a test shows what the gate is for
	var mine []mysql.ShardHead
	for _, h := range heads {
		k := cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}
		ds := datastores[h.Datastore]
		if !p.owned(k) || ds == nil {
			continue
		}
		if s := p.claim.Positions()[k]; h.Last < s.Last && !ungated {
			p.say("no node has the cells %d to %d of shard %s: they come back from Kafka", h.Last+1, s.Last, k)
			if err := allowAdmin(ctx, db); err != nil {
				return nil, err
			}
			n, err := p.restore(ctx, db, ds, h)
			p.out.Restored += n
			if err != nil {
				return nil, err
			}
			h.Last = s.Last
		}
		mine = append(mine, h)
	}
	if ungated {
		return mine, nil
	}
	return mine, compareLast(ctx, p.pub, entities{db}, p.claim.Positions(), datastores, p.req.Cluster)
}

// datastoresOn returns the datastores that a server records, as the stream has
// them.
func datastoresOn(ctx context.Context, cfg *config.Config, db *sql.DB) (map[string]*cdc.Datastore, error) {
	all, err := mysql.DatastoresOf(ctx, db)
	out := make(map[string]*cdc.Datastore, len(all))
	for _, d := range all {
		out[d.Name] = &cdc.Datastore{Name: d.Name, Shards: d.Shards, Partitions: d.Partitions, Merged: cfg.Datastore(d.Name).MergedTopic}
	}
	return out, err
}

// restore puts what Kafka has of a shard and the candidate lacks back.
func (p *promotion) restore(ctx context.Context, db *sql.DB, ds *cdc.Datastore, h mysql.ShardHead) (n int, err error) {
	since, err := mysql.LastCreated(ctx, db, h.Datastore, h.Shard)
	if err != nil {
		return 0, err
	}
	const page = 200
	var cells []cellog.Cell
	put := func() error {
		if len(cells) == 0 {
			return nil
		}
		err := mysql.RestoreCells(ctx, db, h.Datastore, h.Shard, cells)
		if err == nil {
			n += len(cells)
			cells = cells[:0]
		}
		return err
	}
	err = p.claim.Cells(ctx, ds, h.Shard, h.Last, since, func(c *cellog.Cell) error {
		stored, err := body.Encode(nil, c.Body, body.Limits{Bytes: body.MaxBytes, Depth: 10000})
		if err != nil {
			return fmt.Errorf("cell %s: %w", c.ID(), err)
		}
		c.Body = stored
		cells = append(cells, *c)
		if len(cells) == page {
			return put()
		}
		return nil
	})
	return n, errors.Join(err, put())
}

// compareLast compares the last published cell of every shard that a cluster
// owns with what a node has there. Ids are dense and cells immutable, so a node
// of the opened epoch that has the last one has them all.
func compareLast(ctx context.Context, pub *publish.Publisher, node entities, positions map[cdc.ShardKey]position.Shard, datastores map[string]*cdc.Datastore, cluster string) error {
	want := map[cdc.ShardKey]cdc.VerifyShard{}
	for k, s := range positions {
		if ds := datastores[k.Datastore]; ds != nil && s.Owner == cluster && s.Last > 0 {
			want[k] = cdc.VerifyShard{Datastore: ds, Position: s}
		}
	}
	found, err := pub.LastCells(ctx, want)
	if err != nil {
		return err
	}
	at := map[cdc.ShardKey]cellog.AddedID{}
	for k, v := range found {
		if v.Err != nil {
			return fmt.Errorf("shard %s: %w", k, v.Err)
		}
		if v.Last.AddedID > 0 { // else expired in Kafka: nothing to compare
			at[k] = v.Last.AddedID
		}
	}
	cells, err := node.CellsAt(ctx, at)
	if err != nil {
		return err
	}
	for k, id := range at {
		c, ok := cells[k]
		if !ok {
			return fmt.Errorf("shard %s: the node does not have added_id %d, which is final", k, id)
		}
		if last := found[k].Last; c.Epoch != last.Epoch || c.Key != last.Key {
			return fmt.Errorf("shard %s: the node has another cell at added_id %d than Kafka: (epoch %d, %s), not (epoch %d, %s)", k, id, c.Epoch, c.Key, last.Epoch, last.Key)
		}
	}
	return nil
}
