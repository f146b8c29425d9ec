package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// askTimeout bounds the question whether a server is writable.
const askTimeout = 2 * time.Second

// serverSilence is how long a server may give no byte of an answer before its
// connection is given up, be it in the binlog, which sends a sign of life every
// two seconds, or in a read: a stream that is stuck on one must be on another,
// or be known to be stuck, within half a minute (TestStuckIsLeftInTime).
const serverSilence = 10 * time.Second

// Tailers runs one tailer for each storage cluster that the configuration
// gives to this process.
type Tailers struct {
	pools      *pools
	tailers    map[string]*cdc.Tailer
	publishers []*publish.Publisher
	maxLag     time.Duration
	keeper     *Keeper // nil: it does not promote

	mu      sync.Mutex
	stopped bool
}

// NewTailers builds the tailers; Start runs them.
func NewTailers(cfg *config.Config, env Env) (*Tailers, error) {
	p, err := openPools(cfg, tailerAccount, mysqlconn.Config{MaxOpen: 8 + cfg.Tailer.FillShards, ReadTimeout: serverSilence, Session: map[string]string{"time_zone": "'+00:00'"}})
	if err != nil {
		return nil, err
	}
	t := &Tailers{pools: p, tailers: map[string]*cdc.Tailer{}, maxLag: cfg.Admin.MaxLag}
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		if !tails(cfg, c.Name) {
			continue
		}
		if err := t.add(cfg, c, env); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	if cfg.Tailer.AutoPromote > 0 {
		t.keeper = NewKeeper(cfg, env, cfg.Tailer.AutoPromote)
	}
	return t, nil
}

func tails(cfg *config.Config, cluster string) bool {
	for _, name := range cfg.Tailer.Clusters {
		if name == cluster {
			return true
		}
	}
	return len(cfg.Tailer.Clusters) == 0
}

func (t *Tailers) add(cfg *config.Config, c *config.Cluster, env Env) error {
	pub, err := publish.New(publish.Config{
		Kafka: kafkaConfig(cfg, env, "cellog-tailer-"+c.Name), Cluster: c.Name, Prefix: cfg.Kafka.Prefix,
		Logger: env.log(),
	})
	if err != nil {
		return err
	}
	t.publishers = append(t.publishers, pub)
	servers := &servers{cluster: c, pools: t.pools}
	tl, err := cdc.New(cdc.Config{
		Cluster: c.Name, Publisher: pub, Nodes: servers.nodes, TailMaster: cfg.Tailer.TailMaster,
		Merged: func(ds string) bool { return cfg.Datastore(ds).MergedTopic },
		Values: func(ds string) record.Forms { return cfg.Datastore(ds).Values },
		Paused: servers.paused, Heads: servers.heads,
		Beat: servers.beat, BeatEvery: cfg.Tailer.HeartbeatInterval,
		MaxTransactionCells: cfg.Tailer.TransactionCells,
		FillShards:          cfg.Tailer.FillShards, FillMaxLag: cfg.Tailer.FillMaxLag,
		Logger: env.log(), Registerer: env.Registry,
	})
	if err != nil {
		return err
	}
	t.tailers[c.Name] = tl
	return nil
}

// Start runs the tailers in the background.
func (t *Tailers) Start(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return errors.New("tailer: it was stopped; make a new one")
	}
	for name, tl := range t.tailers {
		if err := tl.Start(ctx); err != nil {
			return fmt.Errorf("tailer of cluster %s: %w", name, err)
		}
	}
	if t.keeper != nil {
		t.keeper.Start()
	}
	return nil
}

// Stop commits what is in hand and ends the tailers, all at a time.
func (t *Tailers) Stop(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return nil
	}
	t.stopped = true
	if t.keeper != nil {
		t.keeper.Stop()
	}
	errs := make(chan error, len(t.tailers))
	for name, tl := range t.tailers {
		go func() {
			err := tl.Stop(ctx)
			if err != nil {
				err = fmt.Errorf("tailer of cluster %s: %w", name, err)
			}
			errs <- err
		}()
	}
	var err error
	for range t.tailers {
		err = errors.Join(err, <-errs)
	}
	return errors.Join(err, t.close())
}

func (t *Tailers) close() error {
	for _, p := range t.publishers {
		p.Close()
	}
	return t.pools.close()
}

// Status returns what each tailer is doing, by cluster.
func (t *Tailers) Status() map[string]cdc.Status {
	out := make(map[string]cdc.Status, len(t.tailers))
	for name, tl := range t.tailers {
		out[name] = tl.Status()
	}
	return out
}

// Ready returns nil while every cluster's stream flows, no further behind than
// the configured lag, and no shard is stopped.
func (t *Tailers) Ready(context.Context) error {
	var errs []error
	for name, tl := range t.tailers {
		if err := tl.Ready(); err != nil {
			errs = append(errs, fmt.Errorf("cluster %s: %w", name, err))
		}
		s := tl.Status()
		if s.Lag > t.maxLag && !s.Pause.Paused {
			errs = append(errs, fmt.Errorf("cluster %s: a heartbeat took %v from the master to Kafka", name, s.Lag.Round(time.Millisecond)))
		}
		for shard, err := range s.Stopped {
			errs = append(errs, fmt.Errorf("shard %s is stopped: %w", shard, err))
		}
	}
	return errors.Join(errs...)
}

// servers are the nodes of one cluster, as its tailer needs them.
type servers struct {
	cluster *config.Cluster
	pools   *pools
}

// writable asks a server whether it takes writes.
func (s *servers) writable(ctx context.Context, node string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var readOnly bool
	err := s.pools.get(s.cluster.Name, node).QueryRowContext(ctx, "SELECT "+mysqlconn.ReadOnly).Scan(&readOnly)
	return !readOnly && err == nil, err
}

// nodes lists the minions first. A server that does not answer is taken for a
// minion, but comes last: so a cluster whose minions are all gone stalls, and is
// not tailed from its master.
func (s *servers) nodes(ctx context.Context) ([]cdc.Node, error) {
	a := tailerAccount(s.cluster.Accounts)
	var minions, masters, silent []cdc.Node
	for _, n := range s.cluster.Nodes {
		source, err := binlog.New(binlog.Config{Addr: n.Addr, User: a.User, Password: a.Password.Reveal(), ReadTimeout: serverSilence})
		if err != nil {
			return nil, err
		}
		node := cdc.Node{Name: n.Name, Source: source, Entities: entities{s.pools.get(s.cluster.Name, n.Name)}}
		node.Master, err = s.writable(ctx, n.Name)
		switch {
		case err != nil:
			silent = append(silent, node)
		case node.Master:
			masters = append(masters, node)
		default:
			node.Lag = s.lag(n.Name)
			minions = append(minions, node)
		}
	}
	return append(append(minions, masters...), silent...), nil
}

// masters returns the nodes that take writes, asked all at a time; the error is
// of those that did not answer.
func (s *servers) masters(ctx context.Context) (names []string, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range s.cluster.Nodes {
		wg.Go(func() {
			ok, werr := s.writable(ctx, n.Name)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				names = append(names, n.Name)
			}
			if werr != nil {
				err = errors.Join(err, fmt.Errorf("node %s: %w", n.Name, werr))
			}
		})
	}
	wg.Wait()
	return names, err
}

// heads calls f for the shards of the master.
func (s *servers) heads(ctx context.Context, f func(cdc.Head) error) error {
	names, err := s.masters(ctx)
	if len(names) == 0 {
		return errors.Join(errors.New("no node is writable"), err)
	}
	return entities{s.pools.get(s.cluster.Name, names[0])}.Heads(ctx, f)
}

// lag asks a minion how far it is behind. One that does not follow now, or gives
// no answer, cannot tell.
func (s *servers) lag(node string) func(context.Context) (time.Duration, bool) {
	return func(ctx context.Context) (time.Duration, bool) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		st, err := mysqlreplica.Status(ctx, s.pools.get(s.cluster.Name, node))
		return st.Lag, err == nil && st.LagKnown
	}
}

// beat writes a heartbeat on the master. All servers are asked at a time: one
// that is frozen must not hold up the one that took its place.
func (s *servers) beat(ctx context.Context, cluster string, beat int64, at time.Time) error {
	errs := make([]error, len(s.cluster.Nodes))
	var written atomic.Bool
	var wg sync.WaitGroup
	for i, n := range s.cluster.Nodes {
		wg.Go(func() {
			ok, err := s.writable(ctx, n.Name)
			if ok {
				_, err = s.pools.get(s.cluster.Name, n.Name).ExecContext(ctx,
					"INSERT INTO cellog_meta.heartbeats (cluster, beat, written_at) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE beat = VALUES(beat), written_at = VALUES(written_at)",
					cluster, beat, at)
				written.CompareAndSwap(false, err == nil)
			}
			if err != nil {
				errs[i] = fmt.Errorf("node %s: %w", n.Name, err)
			}
		})
	}
	wg.Wait()
	if written.Load() {
		return nil
	}
	return errors.Join(append(errs, errors.New("no node is writable"))...)
}

// entities reads a server's own tables.
type entities struct{ db *sql.DB }

// Heads calls f for every shard_log of the server.
func (e entities) Heads(ctx context.Context, f func(cdc.Head) error) error {
	heads, err := mysql.Heads(ctx, e.db)
	if err != nil {
		return err
	}
	for _, h := range heads {
		if err := f(cdc.Head{Shard: cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}, Epoch: h.Epoch, Term: h.Term, Last: h.Last}); err != nil {
			return err
		}
	}
	return nil
}

// ReadEntity reads a shard's cells in order.
func (e entities) ReadEntity(ctx context.Context, datastore string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	cells, err := mysql.ReadEntity(ctx, e.db, datastore, shard, after, limit)
	if errors.Is(err, storage.ErrDamaged) {
		return nil, fmt.Errorf("%w: %w", cdc.ErrShard, err)
	}
	return cells, err
}

// ScanEntity reads a shard's cells in order, without copies.
func (e entities) ScanEntity(ctx context.Context, shard cdc.ShardKey, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error {
	err := mysql.ScanEntity(ctx, e.db, shard.Datastore, shard.Shard, after, upTo, limit, f)
	if errors.Is(err, storage.ErrDamaged) {
		return fmt.Errorf("%w: %w", cdc.ErrShard, err)
	}
	return err
}

// CellsAt reads one cell of each of many shards.
func (e entities) CellsAt(ctx context.Context, at map[cdc.ShardKey]cellog.AddedID) (map[cdc.ShardKey]cellog.Cell, error) {
	var places []mysql.Place
	for k, id := range at {
		places = append(places, mysql.Place{Datastore: k.Datastore, Shard: k.Shard, AddedID: id})
	}
	out := make(map[cdc.ShardKey]cellog.Cell, len(at))
	err := mysql.CellsAt(ctx, e.db, places, func(p mysql.Place, c cellog.Cell) {
		out[cdc.ShardKey{Datastore: p.Datastore, Shard: p.Shard}] = c
	})
	return out, err
}

// Datastore reads what the server records about a datastore.
func (e entities) Datastore(ctx context.Context, name string) (shards, partitions int, ok bool, err error) {
	err = e.db.QueryRowContext(ctx, "SELECT shards, partitions FROM cellog_meta.datastores WHERE name = ?", name).Scan(&shards, &partitions)
	if errors.Is(err, sql.ErrNoRows) || mysqlconn.IsMissing(err) {
		return 0, 0, false, nil
	}
	return shards, partitions, err == nil, err
}
