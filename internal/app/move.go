package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// ErrOnCluster is returned by MoveShard for a shard that is where it is to go.
var ErrOnCluster = errors.New("the shard is on that cluster already")

// Move says which shard is to go where.
type Move struct {
	Datastore string
	Shard     cellog.ShardID
	// To is the cluster that is to have it.
	To string
	// Undo opens the shard again where it is, if it was not handed over yet; To
	// is not looked at.
	Undo bool
	// DryRun only looks whether it could begin.
	DryRun bool
	// Progress is told what is being done, and how many of how many cells are
	// copied; nil: nobody listens.
	Progress func(step string, done, of int64)
}

// Moved is what a move did.
type Moved struct {
	Datastore string         `json:"datastore"`
	Shard     cellog.ShardID `json:"shard"`
	From      string         `json:"from"`
	To        string         `json:"to"`
	Epoch     cellog.Epoch   `json:"epoch"`
	// Cells are those that the shard had when it was handed over, Copied those
	// of them that this run copied, IndexRows the rows of its index tables.
	Cells     cellog.AddedID `json:"cells"`
	Copied    int64          `json:"copied"`
	IndexRows int64          `json:"index_rows"`
	// ClosedSeconds is for how long nobody could write to it, in this run.
	ClosedSeconds float64 `json:"closed_seconds"`
	Seconds       float64 `json:"seconds"`
	// DryRun says that nothing was done.
	DryRun bool `json:"dry_run,omitempty"`
}

// end is a cluster that takes part in a move.
type end struct {
	name   string
	record position.Cluster
	db     *sql.DB // of the node that was opened
	pub    *publish.Publisher
}

// move is one on its way: see docs/moving.md.
type move struct {
	cfg      *config.Config
	env      Env
	req      Move
	key      cdc.ShardKey
	ds       storage.Datastore
	from, to *end
	head     mysql.ShardHead // on from
	out      Moved
	arrived  string // the state of the copy, once it has all
	closed   time.Time
	ends     []*end
}

// MoveShard moves a shard to another cluster while it serves, or goes on with a
// move that was cut off.
func MoveShard(ctx context.Context, cfg *config.Config, env Env, req Move) (_ Moved, err error) {
	start := time.Now()
	m := &move{cfg: cfg, env: env, req: req, key: cdc.ShardKey{Datastore: req.Datastore, Shard: req.Shard}, out: Moved{Datastore: req.Datastore, Shard: req.Shard, To: req.To}}
	defer func() {
		for _, e := range m.ends {
			e.pub.Close()
			err = errors.Join(err, mysqlconn.Close(e.db))
		}
	}()
	err = m.run(ctx)
	m.out.Seconds = time.Since(start).Seconds()
	if !m.closed.IsZero() {
		m.out.ClosedSeconds = time.Since(m.closed).Seconds()
	}
	return m.out, err
}

func (m *move) say(done, of cellog.AddedID, format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if m.req.Progress != nil {
		m.req.Progress(s, int64(done), int64(of))
	}
}

// open reaches a cluster's opened node.
func (m *move) open(ctx context.Context, name string) (*end, error) {
	for _, e := range m.ends {
		if e.name == name {
			return e, nil
		}
	}
	if _, err := m.cfg.FindCluster(name); err != nil {
		return nil, err
	}
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(m.cfg, m.env, "cellog-move"), Cluster: name, Prefix: m.cfg.Kafka.Prefix, Remember: true, Logger: m.env.log()})
	if err != nil {
		return nil, err
	}
	pos, err := pub.Standing(ctx)
	if err == nil && (pos.Cluster == nil || pos.Cluster.State != position.Open) {
		err = fmt.Errorf("cluster %s is not open: promote a node first (`cellog cluster promote %s`)", name, name)
	}
	var db *sql.DB
	if err == nil {
		db, err = openedNode(ctx, m.cfg, name, *pos.Cluster)
	}
	if err != nil {
		pub.Close()
		return nil, err
	}
	e := &end{name: name, record: *pos.Cluster, db: db, pub: pub}
	m.ends = append(m.ends, e)
	return e, nil
}

func (m *move) run(ctx context.Context) error {
	if len(m.cfg.Clusters) < 2 {
		return errors.New("there is one cluster only: a shard has nowhere to go")
	}
	if !m.req.Undo {
		if _, err := m.cfg.FindCluster(m.req.To); err != nil {
			return fmt.Errorf("--to: %w", err)
		}
		var err error
		if m.to, err = m.open(ctx, m.req.To); err != nil {
			return err
		}
	}
	owner, handed, err := m.owner(ctx)
	if err != nil {
		return err
	}
	if m.req.Undo {
		return m.undo(ctx, owner, handed)
	}
	switch {
	case owner == m.req.To && handed:
		return m.finish(ctx)
	case owner == m.req.To:
		h, _, err := mysql.Head(ctx, m.to.db, m.key.Datastore, m.key.Shard)
		switch {
		case err == nil && h.Arriving():
			return m.finish(ctx)
		case err == nil && !h.Open():
			return fmt.Errorf("--to: cluster %s has shard %s already, but it is %s there: finish that first", owner, m.key, h.Word())
		}
		return errors.Join(err, fmt.Errorf("--to: shard %s: %w: %s: name another one to move it, look where it is by `cellog shard describe %s %d`", m.key, ErrOnCluster, owner, m.key.Datastore, m.key.Shard))
	case handed:
		return fmt.Errorf("shard %s was handed over to cluster %s and is not open there yet: finish that first (`cellog shard move %s %d --to %s`)", m.key, owner, m.key.Datastore, m.key.Shard, owner)
	}
	if m.from, err = m.open(ctx, owner); err != nil {
		return err
	}
	m.out.From = owner
	if err := m.check(ctx); err != nil || m.req.DryRun {
		m.out.DryRun = true
		return err
	}
	return m.whole(ctx)
}

// any reaches some cluster: all of them tell the same.
func (m *move) any(ctx context.Context) (*end, error) {
	var errs []error
	for i := range m.cfg.Clusters {
		e, err := m.open(ctx, m.cfg.Clusters[i].Name)
		if err == nil {
			return e, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// owner says which cluster has the shard, and whether it has yet to take it over.
func (m *move) owner(ctx context.Context) (owner string, handed bool, err error) {
	e := m.to
	if e == nil {
		if e, err = m.any(ctx); err != nil {
			return "", false, err
		}
	}
	all, err := mysql.DatastoresOf(ctx, e.db)
	if err != nil {
		return "", false, err
	}
	for _, d := range all {
		if d.Name == m.req.Datastore {
			m.ds = d
		}
	}
	switch {
	case m.ds.Name == "":
		return "", false, fmt.Errorf("datastore %q: %w", m.req.Datastore, storage.ErrUnknownDatastore)
	case m.req.Shard < 0 || int(m.req.Shard) >= m.ds.Shards:
		return "", false, fmt.Errorf("datastore %q, shard %d of %d: %w", m.req.Datastore, m.req.Shard, m.ds.Shards, storage.ErrUnknownShard)
	}
	positions, err := e.pub.Everywhere(ctx)
	if err != nil {
		return "", false, err
	}
	if s, in := publish.Newest(positions, m.key); in != "" {
		return s.Owner, s.Owner != in, nil
	}
	// Nothing of it was published yet: it is where it was made.
	var highest cellog.Epoch
	for i := range m.cfg.Clusters {
		e, err := m.open(ctx, m.cfg.Clusters[i].Name)
		if err != nil {
			return "", false, err
		}
		h, ok, err := mysql.Head(ctx, e.db, m.key.Datastore, m.key.Shard)
		if err != nil {
			return "", false, err
		}
		if ok && !h.Foreign() && h.Epoch > highest {
			owner, highest = e.name, h.Epoch
		}
	}
	if owner == "" {
		return "", false, fmt.Errorf("shard %s is on no cluster: finish its making (`cellog datastore create`)", m.key)
	}
	return owner, false, nil
}

// check refuses what could not be finished.
func (m *move) check(ctx context.Context) error {
	h, ok, err := mysql.Head(ctx, m.from.db, m.key.Datastore, m.key.Shard)
	if err != nil {
		return err
	}
	m.head = h
	switch to := h.MovingTo(); {
	case !ok:
		return fmt.Errorf("shard %s is not on node %s of its cluster %s", m.key, m.from.record.Node, m.from.name)
	case to != "" && to != m.req.To:
		return fmt.Errorf("shard %s is moving to cluster %s: finish that (--to %s) or undo it (--undo)", m.key, to, to)
	case to == "" && !h.Open():
		return fmt.Errorf("shard %s is %s on cluster %s: finish its promotion, or its last move, first", m.key, h.State, m.from.name)
	}
	following, err := m.minions(ctx)
	switch {
	case err != nil:
		return err
	case len(following) == 0 && len(m.cfg.Cluster(m.req.To).Nodes) > 1:
		return fmt.Errorf("no minion of cluster %s follows its master %s, so the shard would be on one machine: bring one back (`cellog cluster list`, `cellog cluster rejoin %s NODE`)", m.req.To, m.to.record.Node, m.req.To)
	}
	over, err := mysql.ColumnRoom(ctx, m.from.db, m.to.db, m.key.Datastore)
	if err == nil && over > 0 {
		err = fmt.Errorf("cluster %s has room for %d columns fewer than datastore %s has: raise cellog_meta.cluster.column_limit there", m.req.To, over, m.key.Datastore)
	}
	return err
}

// whole is a move from its beginning to its end.
func (m *move) whole(ctx context.Context) error {
	if err := m.to.pub.Disown(ctx, m.key, m.from.name); err != nil {
		return err
	}
	failpoint.Hit("move/disowned")
	noticed := time.Now()
	if err := m.prepare(ctx); err != nil {
		return err
	}
	failpoint.Hit("move/prepared")
	have, err := m.compareThere(ctx)
	if err == nil {
		have, err = m.copyFinal(ctx, have)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("move/copied")
	if m.head.Open() {
		// While it serves: whatever makes a minion lag must not keep it closed.
		if err := m.waitMinions(ctx, 0, have); err != nil {
			return err
		}
		if err := wait(ctx, moveNotice-time.Since(noticed)); err != nil {
			return err
		}
		if have, err = m.copyFinal(ctx, have); err != nil {
			return err
		}
	}
	last, err := mysql.StartMoving(ctx, m.from.db, m.key.Datastore, m.key.Shard, m.head.Epoch, m.req.To)
	if err != nil {
		return err
	}
	m.closed = time.Now()
	m.out.Cells = last
	m.say(have, last, "closed on %s at %d cells", m.from.name, last)
	failpoint.Hit("move/closed")
	if err := m.waitFinal(ctx, last); err != nil {
		return fmt.Errorf("%w: the shard is closed: run the same again, or open it where it was (--undo)", err)
	}
	failpoint.Hit("move/final")
	if _, err := m.copyUpTo(ctx, have, last); err != nil {
		return err
	}
	failpoint.Hit("move/rest-copied")
	err = m.copyIndexes(ctx, last)
	if errors.Is(err, errHandedOver) {
		return m.finish(ctx)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("move/arrived")
	if err := m.waitMinions(ctx, m.head.Epoch+1, last); err != nil {
		return err
	}
	failpoint.Hit("move/replicated")
	if err := m.handOver(ctx, last); err != nil {
		return err
	}
	m.say(last, last, "handed over to %s", m.req.To)
	failpoint.Hit("move/handed-over")
	return m.finish(ctx)
}

// handOver makes the new cluster the owner, while both clusters are as they were
// when the cells were copied.
func (m *move) handOver(ctx context.Context, last cellog.AddedID) error {
	now, err := m.to.pub.Standing(ctx)
	if err != nil {
		return err
	}
	if err := same(m.to, now.Cluster); err != nil {
		return err
	}
	return m.from.pub.HandOver(ctx, publish.HandOverRequest{Shard: m.key, To: m.req.To, Epoch: m.head.Epoch, Last: last,
		Locked: func(now position.Cluster, commit func() error) error {
			if err := same(m.from, &now); err != nil {
				return err
			}
			return mysql.WhileMoving(ctx, m.from.db, m.key.Datastore, m.key.Shard, m.head.Epoch, m.req.To, last, func(ctx context.Context) error {
				if m.arrived, err = mysql.ConfirmArrived(ctx, m.to.db, m.key.Datastore, m.key.Shard, m.arrived, uuid.NewString()); err != nil {
					return err
				}
				failpoint.Hit("move/before-hand-over")
				return commit()
			})
		}})
}

// same returns nil while a cluster has the master that the move began with.
func same(e *end, now *position.Cluster) error {
	if now == nil || now.State != position.Open || now.Term != e.record.Term || now.Node != e.record.Node || now.ServerUUID != e.record.ServerUUID {
		return fmt.Errorf("cluster %s was promoted meanwhile: run the same again once it is open", e.name)
	}
	return nil
}

// finish is what is left of a move once the shard was handed over: whoever finds
// it so may do it, twice or two at a time.
func (m *move) finish(ctx context.Context) error {
	taken, err := m.to.pub.TakeOver(ctx, m.key)
	if err != nil {
		return err
	}
	failpoint.Hit("move/taken-over")
	m.out.Epoch, m.out.Cells = taken.Epoch, taken.Last
	// The node that is open now has all that is final, or it is not opened.
	h, ok, err := mysql.Head(ctx, m.to.db, m.key.Datastore, m.key.Shard)
	if err != nil {
		return err
	}
	if !ok || h.Last < taken.Last {
		return fmt.Errorf("node %s has cells of shard %s up to %d, final are those up to %d: promote a node that has them (`cellog cluster promote %s`)", m.to.record.Node, m.key, h.Last, taken.Last, m.to.name)
	}
	ds := map[string]*cdc.Datastore{m.ds.Name: {Name: m.ds.Name, Shards: m.ds.Shards, Partitions: m.ds.Partitions}}
	if err := compareLast(ctx, m.to.pub, entities{m.to.db}, map[cdc.ShardKey]position.Shard{m.key: taken}, ds, m.to.name); err != nil {
		return err
	}
	if err := mysql.OpenArrived(ctx, m.to.db, m.key.Datastore, m.key.Shard, taken.Epoch, m.to.record.Term); err != nil {
		return err
	}
	failpoint.Hit("move/opened")
	m.env.log().Info("shard moved", "shard", m.key.String(), "from", m.out.From, "to", m.req.To, "epoch", taken.Epoch, "cells", taken.Last)
	m.say(taken.Last, taken.Last, "open on %s in epoch %d", m.req.To, taken.Epoch)
	return nil
}

// undo opens a shard again that was closed for a move.
func (m *move) undo(ctx context.Context, owner string, handed bool) error {
	if handed {
		return fmt.Errorf("shard %s was handed over to cluster %s: it cannot be undone: finish the move (`cellog shard move %s %d --to %s`), then move it back", m.key, owner, m.key.Datastore, m.key.Shard, owner)
	}
	from, err := m.open(ctx, owner)
	if err != nil {
		return err
	}
	m.from, m.out.From, m.out.To = from, owner, owner
	h, _, err := mysql.Head(ctx, from.db, m.key.Datastore, m.key.Shard)
	switch {
	case err != nil:
		return err
	case h.Open():
		m.out.Epoch, m.out.Cells = h.Epoch, h.Last
		return nil // there is nothing to undo
	case h.MovingTo() == "":
		return fmt.Errorf("shard %s is %s on cluster %s: no move has closed it", m.key, h.State, owner)
	}
	m.out.Epoch, m.out.Cells = h.Epoch, h.Last
	// Under the lock, and with whoever was about to hand it over fenced: a mover
	// that comes later finds it open.
	return mysql.StopMoving(ctx, from.db, m.key.Datastore, m.key.Shard, h.Epoch, h.MovingTo(), func() error {
		return from.pub.Fenced(ctx, func(pos cdc.Positions) error {
			if err := same(from, pos.Cluster); err != nil {
				return err
			}
			if s, ok := pos.Shards[m.key]; ok && s.Owner != owner {
				return fmt.Errorf("shard %s was handed over to cluster %s meanwhile", m.key, s.Owner)
			}
			failpoint.Hit("move/undo-fenced")
			return nil
		})
	})
}
