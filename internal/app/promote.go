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
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

const (
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

	nodes map[string]*sql.DB // of the cluster, those that answer
	ids   map[string]string  // their servers' own names
	away  map[string]error   // the others
	// writable are the nodes that took writes when it began.
	writable map[string]bool
	out      Promoted
	others   []other
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
	p := &promotion{cfg: cfg, env: env, req: req, nodes: map[string]*sql.DB{}, ids: map[string]string{}, away: map[string]error{}, writable: map[string]bool{}, out: Promoted{Cluster: req.Cluster, Left: map[string]string{}}}
	if p.cluster, err = req.names(cfg); err != nil {
		return p.out, err
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
	others := slices.DeleteFunc(slices.Clone(heads), func(h mysql.ShardHead) bool { return p.owned(cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}) })
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
	owner := func(h mysql.ShardHead) string {
		return p.claim.Positions()[cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}].Owner
	}
	if err := mysql.LeaveShards(ctx, db, others, owner); err != nil {
		return err
	}
	if heads, err = mysql.CloseShards(ctx, db, heads, p.claim.Term()); err != nil {
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
	if f.unsure != nil {
		p.say("%v", f.unsure)
	}
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
			p.nodes[n.Name], p.ids[n.Name], p.writable[n.Name] = db, s.ID, !s.ReadOnly
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
		ask, cancel := context.WithTimeout(ctx, 2*nodePatience)
		heads, err := mysql.Heads(ask, db)
		cancel()
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
		db, err := openedNode(ctx, p.cfg, name, c)
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

// stopMaster makes the old master refuse writes, if it answers, and whatever
// node somebody made writable in its place: what a shard has is to stand still.
// One that answers and cannot stop, for its disk hangs, say, is as good as away
// where copies fence it.
func (p *promotion) stopMaster(ctx context.Context) error {
	old := p.claim.Previous()
	for name, db := range p.nodes {
		if !p.writable[name] && (name != old.Node || p.ids[name] != old.ServerUUID) {
			continue
		}
		// It waits for commits in flight.
		ask, cancel := context.WithTimeout(ctx, nodePatience)
		err := mysqlreplica.SetReadOnly(ask, db, true)
		cancel()
		if err == nil {
			continue
		}
		err = fmt.Errorf("node %s: %w", name, err)
		if ctx.Err() != nil {
			return err
		}
		if !p.req.MasterDead {
			if unfenced := p.onlyMasterFences(ctx, old.Node); unfenced != nil {
				return errors.Join(err, unfenced)
			}
		}
		p.say("%s answers and does not stop: it is left behind", name)
		p.away[name] = errors.Join(err, mysqlconn.Close(db))
		delete(p.nodes, name)
	}
	if len(p.nodes) == 0 {
		return fmt.Errorf("cluster %s: no node is left that can become its master: %v", p.req.Cluster, p.away)
	}
	return nil
}

// nominated is the node that an external manager has made writable in place of
// an old master that does not answer; empty if there is none, or more than one.
func (p *promotion) nominated() string {
	old, found := p.claim.Previous(), ""
	if p.nodes[old.Node] != nil && p.ids[old.Node] == old.ServerUUID {
		return ""
	}
	for name := range p.nodes {
		switch {
		case !p.writable[name] || name == old.Node:
		case found != "":
			return ""
		default:
			found = name
		}
	}
	return found
}

// fenced returns nil if the old master answers, or copies fence it, or an
// operator says that it is dead.
func (p *promotion) fenced(ctx context.Context, old position.Cluster) error {
	if p.req.MasterDead || p.nodes[old.Node] != nil && p.ids[old.Node] == old.ServerUUID {
		return nil
	}
	return p.onlyMasterFences(ctx, old.Node)
}

// onlyMasterFences returns an error that names the old master where no copies
// fence it.
func (p *promotion) onlyMasterFences(ctx context.Context, old string) error {
	if len(p.cfg.Clusters) < 2 {
		return fmt.Errorf("cluster %s is alone, so nothing but its old master %s can say that it takes no more writes, and it does not answer: if it is dead for good, say so (--master-dead)", p.req.Cluster, old)
	}
	for _, db := range p.nodes {
		ask, cancel := context.WithTimeout(ctx, nodePatience)
		all, err := mysql.DatastoresOf(ask, db)
		cancel()
		if err != nil {
			continue // another node tells
		}
		for _, d := range all {
			if p.cfg.Datastore(d.Name).Ack == storage.AckPrimary.String() {
				return fmt.Errorf("datastore %s has ack primary: without copies nothing but the old master %s can say that it takes no more writes, and it does not answer: if it is dead for good, say so (--master-dead)", d.Name, old)
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
	if o.db, err = openedNode(ctx, p.cfg, name, c); err != nil {
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
