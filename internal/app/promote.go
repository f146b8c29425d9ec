package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

const (
	// openAfter is how long after its claim a promotion opens the shards: by
	// then every worker marks what it reads from the old master as stale, for
	// its last look at the terms is older than mysql.TermsFor.
	openAfter = 3 * time.Second
	// applyTimeout bounds how long a minion may take to apply what it received.
	applyTimeout = 2 * time.Minute
	// finalTimeout bounds the wait until what the other masters had stored at
	// the claim is final.
	finalTimeout = time.Minute
)

// Promote says what to promote.
type Promote struct {
	// Cluster is the storage cluster. Required.
	Cluster string
	// Node is the one to be made the master; empty: the most advanced one.
	Node string
	// Expect is the term that the cluster must be of; zero: any.
	Expect cellog.Term
	// Without names other clusters whose masters are dead for good: what only
	// their disks held of this cluster's cells is given up.
	Without []string
	// MasterDead is the operator's word that the old master will never answer
	// again, where no copies fence it: with one cluster alone, or a datastore
	// whose ack is primary.
	MasterDead bool
	// Progress is told what is being done; nil: nobody listens.
	Progress func(step string)
}

// Promoted is what a promotion did.
type Promoted struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	Term    int    `json:"term"`
	// Restored are the cells that were taken back from Kafka, Drained those
	// taken from copies; Lost are copies of cells under whose key another body
	// stands, which the drainer rejects.
	Restored int `json:"restored"`
	Drained  int `json:"drained"`
	Lost     int `json:"lost"`
	// Following are the nodes that follow the new master, Left those that do
	// not, with the reason: `cellog cluster rejoin` rebuilds them.
	Following []string          `json:"following"`
	Left      map[string]string `json:"left"`
	Seconds   float64           `json:"seconds"`
}

// promotion is one on its way: see the design's section 7.
type promotion struct {
	cfg     *config.Config
	env     Env
	req     Promote
	cluster *config.Cluster
	pub     *publish.Publisher
	claim   *publish.Claim
	began   time.Time // when the claim was written

	nodes  map[string]*sql.DB // of the cluster, those that answer
	ids    map[string]string  // their servers' own names
	away   map[string]error   // the others
	out    Promoted
	others []other
}

// other is another cluster, where the claim was made known.
type other struct {
	name string
	db   *sql.DB
	// heads are its shards, as they stood when it knew of the claim.
	heads []mysql.ShardHead
}

// PromoteCluster makes a node the master of its cluster. It may be called again
// after it failed, or was killed, at any point: a claim that was left is taken
// over, an open that was left half-done is finished.
func PromoteCluster(ctx context.Context, cfg *config.Config, env Env, req Promote) (_ Promoted, err error) {
	start := time.Now()
	p := &promotion{cfg: cfg, env: env, req: req, nodes: map[string]*sql.DB{}, ids: map[string]string{}, away: map[string]error{}, out: Promoted{Cluster: req.Cluster, Left: map[string]string{}}}
	for i := range cfg.Clusters {
		if cfg.Clusters[i].Name == req.Cluster {
			p.cluster = &cfg.Clusters[i]
		}
	}
	if p.cluster == nil {
		return p.out, fmt.Errorf("no cluster %q in the configuration", req.Cluster)
	}
	if p.pub, err = publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "cellog-promote"), Cluster: req.Cluster, Prefix: cfg.Kafka.Prefix, Logger: env.log()}); err != nil {
		return p.out, err
	}
	defer p.close(ctx)
	err = p.run(ctx)
	p.out.Seconds = time.Since(start).Seconds()
	return p.out, err
}

func (p *promotion) close(ctx context.Context) {
	if p.claim != nil {
		p.claim.Close(ctx)
	}
	p.pub.Close()
	for _, db := range p.nodes {
		_ = mysqlconn.Close(db) // nothing is pending on it
	}
	for _, o := range p.others {
		_ = mysqlconn.Close(o.db)
	}
}

func (p *promotion) say(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	p.env.log().Info("promotion", "cluster", p.req.Cluster, "step", s)
	if p.req.Progress != nil {
		p.req.Progress(s)
	}
}

func (p *promotion) run(ctx context.Context) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	if err := p.precheck(ctx); err != nil {
		return err
	}
	above, err := p.highestTerm(ctx)
	if err != nil {
		return err
	}
	if p.claim, err = p.pub.Claim(ctx, publish.ClaimRequest{Expect: p.req.Expect, Above: above, Mark: uuid.NewString()}); err != nil {
		return err
	}
	p.began = time.Now()
	p.out.Term = int(p.claim.Term())
	p.say("claimed term %d", p.claim.Term())
	failpoint.Hit("promote/claimed")
	if err := p.stopMaster(ctx); err != nil {
		return err
	}
	failpoint.Hit("promote/master-stopped")
	if err := p.tellOthers(ctx); err != nil {
		return err
	}
	failpoint.Hit("promote/told")
	heads, err := p.choose(ctx)
	if err != nil {
		return err
	}
	failpoint.Hit("promote/chosen")
	db := p.nodes[p.out.Node]
	if heads, err = p.gate(ctx, db, heads); err != nil {
		return err
	}
	failpoint.Hit("promote/gate-passed")
	if err := p.waitForOthers(ctx); err != nil {
		return err
	}
	failpoint.Hit("promote/others-final")
	if err := mysqlreplica.Forget(ctx, db); err != nil {
		return err
	}
	if err := allowAdmin(ctx, db); err != nil {
		return err
	}
	if err := mysql.CloseShards(ctx, db, heads, p.claim.Term()); err != nil {
		return err
	}
	failpoint.Hit("promote/closed")
	first := map[cdc.ShardKey]cellog.AddedID{}
	for _, h := range heads {
		first[cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}] = h.Last + 1
	}
	p.follow(ctx, db)
	failpoint.Hit("promote/re-pointed")
	if err := p.claim.Check(ctx); err != nil {
		return err
	}
	open := publish.OpenRequest{Node: p.out.Node, ServerUUID: p.ids[p.out.Node], Alone: len(p.out.Following) == 0, First: first}
	if err := p.claim.Open(ctx, open); err != nil {
		return err
	}
	p.say("opened %s in Kafka", p.out.Node)
	failpoint.Hit("promote/open-in-kafka")
	f := finish{cfg: p.cfg, env: p.env, cluster: p.req.Cluster, node: p.out.Node, term: p.claim.Term(), db: db, since: p.began}
	for _, o := range p.others {
		f.holders = append(f.holders, o.db)
	}
	err = f.run(ctx)
	p.out.Drained, p.out.Lost = f.drained, f.lost
	if err == nil {
		p.say("term %d serves from %s", p.claim.Term(), p.out.Node)
	}
	return err
}

// connect opens a pool to every node of the cluster that answers.
func (p *promotion) connect(ctx context.Context) error {
	var mu sync.Mutex
	var g errgroup.Group
	for _, n := range p.cluster.Nodes {
		g.Go(func() error {
			db, err := openAdmin(p.cluster, n.Name)
			if err != nil {
				return err
			}
			ask, cancel := context.WithTimeout(ctx, nodePatience)
			defer cancel()
			s, err := mysqlreplica.Identity(ask, db)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				p.away[n.Name] = errors.Join(err, mysqlconn.Close(db))
				return nil
			}
			p.nodes[n.Name], p.ids[n.Name] = db, s.ID
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if len(p.nodes) == 0 {
		var errs []error
		for n, err := range p.away {
			errs = append(errs, fmt.Errorf("node %s: %w", n, err))
		}
		return fmt.Errorf("cluster %s: no node answers: %w", p.req.Cluster, errors.Join(errs...))
	}
	if p.req.Node != "" && p.nodes[p.req.Node] == nil {
		return fmt.Errorf("node %s/%s does not answer: %w", p.req.Cluster, p.req.Node, p.away[p.req.Node])
	}
	return nil
}

// highestTerm is the highest number that a node of the cluster has for a shard's
// epoch or term: the new term must be above it.
func (p *promotion) highestTerm(ctx context.Context) (cellog.Term, error) {
	var most cellog.Term
	for name, db := range p.nodes {
		heads, err := mysql.Heads(ctx, db)
		if err != nil {
			return 0, fmt.Errorf("node %s: %w", name, err)
		}
		for _, h := range heads {
			most = max(most, h.Term, cellog.Term(h.Epoch))
		}
	}
	return most, nil
}

// precheck refuses what would stop half-way, while nothing has been done: a
// claim without an open stops the cluster.
func (p *promotion) precheck(ctx context.Context) error {
	all, err := opened(ctx, p.cfg, p.env)
	if err != nil {
		return err
	}
	own, ok := all[p.req.Cluster]
	if !ok {
		return fmt.Errorf("cluster %s: %w", p.req.Cluster, publish.ErrNeverOpened)
	}
	for name, c := range all {
		if name == p.req.Cluster || slices.Contains(p.req.Without, name) {
			continue
		}
		db, err := holder(ctx, p.cfg, name, c)
		if err != nil {
			return mustAnswer(name, err)
		}
		_ = mysqlconn.Close(db) // it was only asked
	}
	return p.fenced(ctx, own)
}

func mustAnswer(cluster string, err error) error {
	return fmt.Errorf("the master of cluster %s must know of the claim, for it may hold copies: %w: promote there first, or if it is dead for good, name it (--without %s)", cluster, err, cluster)
}

// stopMaster makes the old master refuse writes, if it answers.
func (p *promotion) stopMaster(ctx context.Context) error {
	old := p.claim.Previous()
	if db := p.nodes[old.Node]; db != nil && p.ids[old.Node] == old.ServerUUID {
		return mysqlreplica.SetReadOnly(ctx, db, true)
	}
	return nil
}

// fenced returns nil if the old master answers, or copies fence it, or an
// operator says that it is dead.
func (p *promotion) fenced(ctx context.Context, old position.Cluster) error {
	if p.req.MasterDead || p.nodes[old.Node] != nil && p.ids[old.Node] == old.ServerUUID {
		return nil
	}
	if len(p.cfg.Clusters) < 2 {
		return fmt.Errorf("cluster %s is alone, so nothing but its old master %s can say that it takes no more writes, and it does not answer: if it is dead for good, say so (--master-dead)", p.req.Cluster, old.Node)
	}
	for _, db := range p.nodes {
		all, err := mysql.DatastoresOf(ctx, db)
		if err != nil {
			continue // another node tells
		}
		for _, d := range all {
			if p.cfg.Datastore(d.Name).Ack == storage.AckPrimary.String() {
				return fmt.Errorf("datastore %s has ack primary: without copies nothing but the old master %s can say that it takes no more writes, and it does not answer: if it is dead for good, say so (--master-dead)", d.Name, old.Node)
			}
		}
		return nil
	}
	return nil
}

// tellOthers makes the claim known to the master of every other cluster, which
// from then on refuses copies of older terms and does not let its own cells rest
// on this cluster's old master.
func (p *promotion) tellOthers(ctx context.Context) error {
	all, err := opened(ctx, p.cfg, p.env) // after the claim: see LoadTerms
	if err != nil {
		return err
	}
	claim := mysql.TermRecord{Cluster: p.req.Cluster, Term: p.claim.Term(), State: position.Claimed}
	for name, c := range all {
		if name == p.req.Cluster || slices.Contains(p.req.Without, name) {
			continue
		}
		o, err := p.tell(ctx, name, c, claim)
		if err != nil {
			return mustAnswer(name, err)
		}
		p.others = append(p.others, o)
	}
	return nil
}

func (p *promotion) tell(ctx context.Context, name string, c position.Cluster, claim mysql.TermRecord) (o other, err error) {
	o = other{name: name}
	if o.db, err = holder(ctx, p.cfg, name, c); err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err = allowAdmin(ctx, o.db); err == nil {
		err = mysql.LoadTerms(ctx, o.db, []mysql.TermRecord{claim})
	}
	if err == nil {
		// Only now: what it stored before is complete.
		o.heads, err = mysql.Heads(ctx, o.db)
	}
	if err != nil {
		_ = mysqlconn.Close(o.db) // the error says it all
	}
	return o, err
}

// allowAdmin lets an administrator write to a MySQL server that is read-only for
// all others.
func allowAdmin(ctx context.Context, db *sql.DB) error {
	s, err := mysqlreplica.Identity(ctx, db)
	if err != nil || s.MariaDB {
		return err
	}
	_, err = db.ExecContext(ctx, "SET GLOBAL super_read_only = OFF")
	return err
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
		heads []mysql.ShardHead
		sum   int64
		err   error
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
			if name != old.Node {
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
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
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
		if best == "" || c.sum > found[best].sum || c.sum == found[best].sum && (n.Name == p.req.Node || n.Name == old.Node && best != p.req.Node) {
			best = n.Name
		}
	}
	if best == "" {
		return nil, fmt.Errorf("cluster %s: no node can become its master: %v", p.req.Cluster, p.out.Left)
	}
	if p.req.Node == "" || p.req.Node == best {
		p.out.Node = best
		p.say("%s is the candidate", best)
		return found[best].heads, nil
	}
	if err := found[p.req.Node].err; err != nil {
		return nil, fmt.Errorf("node %s cannot become the master: %w", p.req.Node, err)
	}
	p.out.Node = p.req.Node
	p.say("%s is to become the master and lacks what %s has: it follows", p.req.Node, best)
	return p.catchUp(ctx, p.nodes[p.req.Node], p.nodes[best], best)
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
	for _, n := range p.cluster.Nodes {
		if n.Name == node {
			return mysqlreplica.Source{Addr: n.Addr, User: a.User, Password: a.Password.Reveal()}, nil
		}
	}
	return mysqlreplica.Source{}, fmt.Errorf("cluster %s has no node %s", p.req.Cluster, node)
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
	all, err := mysql.DatastoresOf(ctx, db)
	if err != nil {
		return nil, err
	}
	datastores := map[string]*cdc.Datastore{}
	for _, d := range all {
		datastores[d.Name] = &cdc.Datastore{Name: d.Name, Shards: d.Shards, Partitions: d.Partitions, Merged: p.cfg.Datastore(d.Name).MergedTopic}
	}
	var mine []mysql.ShardHead
	for _, h := range heads {
		k := cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}
		ds := datastores[h.Datastore]
		if !p.owned(k) || ds == nil {
			continue
		}
		if s := p.claim.Positions()[k]; h.Last < s.Last {
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
	return mine, compareLast(ctx, p.pub, entities{db}, p.claim.Positions(), datastores, p.req.Cluster)
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
	for k, v := range found {
		if v.Err != nil {
			return fmt.Errorf("shard %s: %w", k, v.Err)
		}
		if v.Last.AddedID == 0 {
			continue // expired in Kafka: nothing to compare
		}
		cells, err := node.ReadEntity(ctx, k.Datastore, k.Shard, v.Last.AddedID-1, 1)
		if err != nil {
			return fmt.Errorf("shard %s: %w", k, err)
		}
		if len(cells) == 0 || cells[0].AddedID != v.Last.AddedID {
			return fmt.Errorf("shard %s: the node does not have added_id %d, which is final", k, v.Last.AddedID)
		}
		if c := cells[0]; c.Epoch != v.Last.Epoch || c.Key != v.Last.Key {
			return fmt.Errorf("shard %s: the node has another cell at added_id %d than Kafka: (epoch %d, %s), not (epoch %d, %s)", k, c.AddedID, c.Epoch, c.Key, v.Last.Epoch, v.Last.Key)
		}
	}
	return nil
}

// waitForOthers returns when all that the other masters had stored at the claim
// is final, for its copies may have lain on this cluster's old master. There is
// no need when that one is opened again: they lie there still.
func (p *promotion) waitForOthers(ctx context.Context) error {
	if old := p.claim.Previous(); old.Node == p.out.Node && old.ServerUUID == p.ids[p.out.Node] {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	for _, o := range p.others {
		pub, err := publish.New(publish.Config{Kafka: kafkaConfig(p.cfg, p.env, "cellog-promote"), Cluster: o.name, Prefix: p.cfg.Kafka.Prefix, Logger: p.env.log()})
		if err != nil {
			return err
		}
		err = p.waitFor(ctx, pub, o)
		pub.Close()
		if err != nil {
			return fmt.Errorf("what the master of cluster %s had stored at the claim must be final first: %w", o.name, err)
		}
	}
	return nil
}

func (p *promotion) waitFor(ctx context.Context, pub *publish.Publisher, o other) error {
	for {
		pos, err := pub.Positions(ctx)
		if err != nil {
			return err
		}
		behind := ""
		for _, h := range o.heads {
			s, ok := pos.Shards[cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}]
			if h.Last > s.Last && (!ok || s.Owner == o.name) {
				behind = fmt.Sprintf("shard %s is final up to %d of %d", cellog.DatabaseName(h.Datastore, h.Shard), s.Last, h.Last)
			}
		}
		if behind == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: is its tailer running? %w", behind, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// follow points the other nodes that can follow the candidate at it.
func (p *promotion) follow(ctx context.Context, candidate *sql.DB) {
	src, err := p.source(p.out.Node)
	for name, db := range p.nodes {
		if name == p.out.Node || p.out.Left[name] != "" {
			continue
		}
		if err == nil {
			err := p.rePoint(ctx, name, db, candidate, src)
			if err == nil {
				p.out.Following = append(p.out.Following, name)
				continue
			}
			p.out.Left[name] = err.Error()
			continue
		}
		p.out.Left[name] = err.Error()
	}
	for name, err := range p.away {
		p.out.Left[name] = "it does not answer: " + err.Error()
	}
	slices.Sort(p.out.Following)
}

func (p *promotion) rePoint(ctx context.Context, name string, db, candidate *sql.DB, src mysqlreplica.Source) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	// What it has and the candidate has not would make it differ for ever.
	gtids, err := mysqlreplica.GTIDs(ctx, db)
	if err != nil {
		return err
	}
	if has, err := mysqlreplica.Has(ctx, candidate, gtids); err != nil || !has {
		return errors.Join(err, fmt.Errorf("it has transactions that %s has not: rejoin it (`cellog cluster rejoin %s %s`)", p.out.Node, p.req.Cluster, name))
	}
	if err := mysqlreplica.SetReadOnly(ctx, db, true); err != nil {
		return err
	}
	if err := mysqlreplica.Follow(ctx, db, src); err != nil {
		return err
	}
	return mysqlreplica.WaitReceivingAndApplying(ctx, db)
}

// finish is what is left once a term is open in Kafka. Whoever finds it undone
// does it; doing it twice, or by two at a time, does no harm.
type finish struct {
	cfg     *config.Config
	env     Env
	cluster string
	node    string
	term    cellog.Term
	db      *sql.DB   // of the node
	holders []*sql.DB // the other clusters' masters
	since   time.Time // when the claim was made, or later

	drained, lost int
}

func (f *finish) run(ctx context.Context) error {
	if err := LoadTerms(ctx, f.cfg, f.env, f.cluster); err != nil {
		return err
	}
	failpoint.Hit("promote/terms-loaded")
	if err := allowAdmin(ctx, f.db); err != nil {
		return err
	}
	if err := f.drain(ctx); err != nil {
		return err
	}
	failpoint.Hit("promote/drained")
	t := time.NewTimer(openAfter - time.Since(f.since))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
	}
	heads, err := mysql.Heads(ctx, f.db)
	if err != nil {
		return err
	}
	if err := mysql.OpenShards(ctx, f.db, heads, f.term); err != nil {
		return err
	}
	failpoint.Hit("promote/shards-open")
	return mysqlreplica.SetReadOnly(ctx, f.db, false)
}

// drain brings the numbered copies that the other masters have into the closed
// shards, before anybody can write there: they were answered 201.
func (f *finish) drain(ctx context.Context) error {
	shards := map[cdc.ShardKey]bool{}
	for _, h := range f.holders {
		found, err := mysql.CopyShards(ctx, h, f.cluster)
		if err != nil {
			return err
		}
		for _, s := range found {
			shards[cdc.ShardKey{Datastore: s.Datastore, Shard: s.Shard}] = true
		}
	}
	for k := range shards {
		refs, err := mysql.CopyRefs(ctx, f.holders, f.cluster, k.Datastore, k.Shard)
		if err != nil {
			return err
		}
		added, lost, err := mysql.AddCopies(ctx, f.db, k.Datastore, k.Shard, f.term, refs)
		f.drained, f.lost = f.drained+added, f.lost+lost
		if errors.Is(err, mysql.ErrDeposed) {
			continue // it is open already: they are in
		}
		if err != nil {
			return err
		}
		failpoint.Hit("promote/shard-drained")
	}
	return nil
}
