package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage/mysql"
)

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

// rePointPatience bounds how long a node is given to follow. Only a test changes
// it.
var rePointPatience = 15 * time.Second

// rePoint makes a node follow the candidate as it is. ErrDiverged says that it
// never can.
func (p *promotion) rePoint(ctx context.Context, name string, db, candidate *sql.DB, src mysqlreplica.Source) error {
	ctx, cancel := context.WithTimeout(ctx, rePointPatience)
	defer cancel()
	// What it has and the candidate has not would make it differ for ever.
	gtids, err := mysqlreplica.GTIDs(ctx, db)
	if err != nil {
		return err
	}
	has, err := mysqlreplica.Has(ctx, candidate, gtids)
	if err != nil {
		return err
	}
	if !has {
		return fmt.Errorf("%w: it has transactions that %s has not: rejoin it (`cellog cluster rejoin %s %s`)", mysqlreplica.ErrDiverged, p.out.Node, p.req.Cluster, name)
	}
	if err := mysqlreplica.SetReadOnly(ctx, db, true); err != nil {
		return err
	}
	if err := mysqlreplica.Follow(ctx, db, src); err != nil {
		return err
	}
	return mysqlreplica.WaitReceivingAndApplying(ctx, db)
}

// openAfter is how long after its claim a promotion opens the shards: by then
// no read that began before it is still on its way. Only a test changes it.
var openAfter = 3 * time.Second

// wait lets time pass. Only a test changes it.
var wait = func(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
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
	unsure        error // whether the accounts have their rights on the node
}

func (f *finish) run(ctx context.Context) error {
	if err := LoadTerms(ctx, f.cfg, f.env, f.cluster); err != nil {
		return err
	}
	failpoint.Hit("promote/terms-loaded")
	if err := f.drain(ctx); err != nil {
		return err
	}
	failpoint.Hit("promote/drained")
	f.rights(ctx) // in the time that is waited anyway
	if err := wait(ctx, openAfter-time.Since(f.since)); err != nil {
		return err
	}
	heads, err := mysql.Heads(ctx, f.db)
	if err != nil {
		return err
	}
	if err := mysql.OpenShards(ctx, f.db, heads, f.term); err != nil {
		return err
	}
	failpoint.Hit("promote/shards-open")
	return allowWrites(ctx, f.cfg, f.env, f.cluster, f.node, f.term, f.db)
}

// rightsPatience bounds what a promotion gives to the accounts' rights.
const rightsPatience = 10 * time.Second

// rights makes sure of the accounts' rights on the new master, on which all that
// is written next depends. They are there, but on a node that an operator rebuilt,
// say; a promotion does not fail for them, see unsure.
func (f *finish) rights(ctx context.Context) {
	c, err := f.cfg.FindCluster(f.cluster)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, rightsPatience)
		defer cancel()
		err = ensureRights(ctx, c, f.node)
	}
	if err != nil {
		f.unsure = fmt.Errorf("the accounts may lack rights on node %s, see `cellog doctor`: %w", f.node, err)
	}
}

// allowWrites makes an opened node writable, unless Kafka says by now that it is
// another one's turn: whoever calls this may have been frozen since it looked, and
// where no copies are kept, read_only is all that keeps an old master off.
func allowWrites(ctx context.Context, cfg *config.Config, env Env, cluster, node string, term cellog.Term, db *sql.DB) error {
	now, err := openedOf(ctx, cfg, env, cluster)
	if err != nil {
		return err
	}
	if now == nil {
		return fmt.Errorf("cluster %s: %w", cluster, publish.ErrNeverOpened)
	}
	if now.Term != term || now.State != position.Open || now.Node != node {
		return fmt.Errorf("cluster %s: term %d on node %s is over: Kafka has term %d, %s, on node %s", cluster, term, node, now.Term, now.State, now.Node)
	}
	return mysqlreplica.SetReadOnly(ctx, db, false)
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
		added, lost, err := mysql.AddCopies(ctx, f.db, f.cluster, k.Datastore, k.Shard, f.term, refs)
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
