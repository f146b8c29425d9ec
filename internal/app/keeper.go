package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

const (
	// keepEvery is how often a cluster is looked at.
	keepEvery = 500 * time.Millisecond
	// claimPatience is how long a claim may stand before it is taken over: a
	// promotion that lives may wait for a minion that applies what it received.
	claimPatience = 20 * time.Second
)

// finishPatience is how long a promotion is given to finish by itself once its
// open is in Kafka, and a mover to go on. Two that finish do no harm, but each
// tells less. Only a test changes it.
var finishPatience = 10 * time.Second

// errFinishing is no reason to promote: another one is at it.
var errFinishing = errors.New("its promotion is being finished")

// Keeper sees to it that each storage cluster's master is the node that Kafka
// says was opened: after a restart it makes that node writable, once it holds all
// that is final; it finishes promotions that were left half-done; and with a
// grace it promotes another node when the master is away for longer.
//
// Any number of keepers may run: what they do is safe twice, and of two that
// promote one wins.
type Keeper struct {
	cfg   *config.Config
	env   Env
	grace time.Duration // 0: it never promotes
	final *final
	log   *slog.Logger
	// rejoins says that nodes which do not follow are rebuilt, and their errant
	// cells put again.
	rejoins bool
	// promoted, if set, is called after a promotion by this keeper.
	promoted func(Promoted)

	mu        sync.Mutex
	following bool
	cancel    context.CancelFunc
	wg        sync.WaitGroup
}

// NewKeeper returns a keeper that promotes after the grace; zero: never.
func NewKeeper(cfg *config.Config, env Env, grace time.Duration) *Keeper {
	return &Keeper{cfg: cfg, env: env, grace: grace, final: newFinal(cfg, env), log: env.log()}
}

// follow begins to read the positions. k.mu is held.
func (k *Keeper) follow() {
	if !k.following {
		k.following = true
		k.final.start()
	}
}

// Start watches all clusters until Stop. Starting twice is safe.
func (k *Keeper) Start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.follow()
	for i := range k.cfg.Clusters {
		k.wg.Go(func() { k.watch(ctx, &k.cfg.Clusters[i]) })
	}
}

// Stop ends the watch; a promotion in hand is left, and another one takes over.
func (k *Keeper) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cancel != nil {
		k.cancel()
		k.wg.Wait()
	}
	k.final.stop()
}

// Ensure returns when the opened node of every cluster takes writes. A cluster of
// which none was opened yet is left alone.
func (k *Keeper) Ensure(ctx context.Context) error {
	has, err := opened(ctx, k.cfg, k.env)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.follow()
	k.mu.Unlock()
	errs := make([]error, len(k.cfg.Clusters))
	var wg sync.WaitGroup
	for i := range k.cfg.Clusters {
		if _, ok := has[k.cfg.Clusters[i].Name]; !ok {
			continue
		}
		wg.Go(func() {
			w := watcher{k: k, cluster: &k.cfg.Clusters[i]}
			defer w.close()
			for {
				err := w.once(ctx)
				if err == nil {
					return
				}
				select {
				case <-ctx.Done():
					errs[i] = fmt.Errorf("cluster %s: %w", w.cluster.Name, err)
					return
				case <-time.After(keepEvery):
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// watcher is the watch of one cluster, by one goroutine.
type watcher struct {
	k       *Keeper
	cluster *config.Cluster
	pub     *publish.Publisher
	dbs     map[string]*sql.DB

	record position.Cluster // as it was seen last
	since  time.Time        // when it was seen first
	away   time.Time        // since when its node does not serve; zero: it does
	moves  leftMoves
	nodes  rejoins
}

func (w *watcher) close() {
	w.moves.wg.Wait()
	w.nodes.stop()
	if w.pub != nil {
		w.pub.Close()
	}
	for _, db := range w.dbs {
		_ = mysqlconn.Close(db) // nothing is pending on it
	}
}

func (k *Keeper) watch(ctx context.Context, c *config.Cluster) {
	w := watcher{k: k, cluster: c}
	defer w.close()
	said := ""
	for {
		err := w.once(ctx)
		switch {
		case err == nil:
			said = ""
			if time.Since(w.moves.looked) > lookAround {
				w.moves.look(ctx, k, c.Name)
			}
			if k.rejoins && w.record.State == position.Open {
				w.nodes.look(ctx, &w)
			}
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			k.log.Warn("the cluster has no master", "cluster", c.Name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		// Spread, so that keepers do not claim all at once.
		case <-time.After(keepEvery/2 + rand.N(keepEvery)):
		}
	}
}

func (w *watcher) connect() (err error) {
	if w.pub == nil {
		w.dbs = map[string]*sql.DB{}
		w.pub, err = publish.New(publish.Config{Kafka: kafkaConfig(w.k.cfg, w.k.env, "cellog-keeper"), Cluster: w.cluster.Name, Prefix: w.k.cfg.Kafka.Prefix, Logger: w.k.log})
	}
	return err
}

// once looks at the cluster and does what is to be done. nil: its node serves.
func (w *watcher) once(ctx context.Context) error {
	if err := w.connect(); err != nil {
		return err
	}
	record, known := w.k.final.cluster(w.cluster.Name)
	if record == nil {
		if !known {
			return errors.New("its positions are not read yet")
		}
		return nil // `datastore create` opens the first
	}
	if c := *record; c.Term != w.record.Term || c.State != w.record.State || c.ClaimMark != w.record.ClaimMark {
		w.record, w.since, w.away = c, time.Now(), time.Time{}
		w.nodes.cancel() // what it does is for another master
	}
	if w.record.State == position.Claimed {
		if w.k.grace > 0 && time.Since(w.since) > claimPatience {
			return w.promote(ctx)
		}
		return fmt.Errorf("term %d was claimed and is not open yet", w.record.Term)
	}
	began := time.Now()
	err := w.serve(ctx)
	if err == nil {
		w.away = time.Time{}
		return nil
	}
	if w.away.IsZero() {
		w.away = began
	}
	if w.k.grace > 0 && time.Since(w.away) > w.k.grace && !errors.Is(err, errFinishing) {
		return errors.Join(err, w.promote(ctx))
	}
	return err
}

// db returns a pool of a node's admin.
func (w *watcher) db(node string) (*sql.DB, error) {
	if db := w.dbs[node]; db != nil {
		return db, nil
	}
	db, err := openAdmin(w.cluster, node)
	if err == nil {
		w.dbs[node] = db
	}
	return db, err
}

// serve makes sure that the opened node takes writes, and, as far as is known,
// that no other does.
func (w *watcher) serve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	db, err := w.db(w.record.Node)
	if err != nil {
		return err
	}
	ask, cancelAsk := context.WithTimeout(ctx, nodePatience/2)
	s, err := mysqlreplica.Identity(ask, db)
	cancelAsk()
	if err != nil {
		return fmt.Errorf("node %s: %w", w.record.Node, err)
	}
	if s.ID != w.record.ServerUUID {
		return fmt.Errorf("node %s: term %d opened server %s, but it is %s now", w.record.Node, w.record.Term, w.record.ServerUUID, s.ID)
	}
	w.demote(ctx)
	if !s.ReadOnly {
		return nil
	}
	if err := w.complete(ctx, db); err != nil {
		return fmt.Errorf("node %s: %w", w.record.Node, err)
	}
	return nil
}

// others calls f for the cluster's nodes that are not its master.
func (w *watcher) others(f func(name string, db *sql.DB)) {
	for _, n := range w.cluster.Nodes {
		if n.Name == w.record.Node {
			continue
		}
		if db, err := w.db(n.Name); err == nil { // it only fails for what is configured
			f(n.Name, db)
		}
	}
}

// demote makes the cluster's other nodes refuse writes, so far as they answer. It
// needs a look that vouches for the record: a keeper that is cut off from Kafka
// does not see a promotion, and would stop the new master again and again. While
// such a look counts, no later promotion has let anybody write.
func (w *watcher) demote(ctx context.Context) {
	w.others(func(name string, db *sql.DB) {
		o := w.k.final.opened(w.cluster.Name)
		left := storage.LookFor - time.Since(o.Looked)
		if o.Node != w.record.Node || left <= 0 {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, min(left, nodePatience/3))
		defer cancel()
		if s, err := mysqlreplica.Identity(ctx, db); err == nil && !s.ReadOnly {
			err = mysqlreplica.SetReadOnly(ctx, db, true)
			w.k.log.Warn("a node took writes that is not the cluster's master: it is read-only now", "cluster", w.cluster.Name, "node", name, "error", err)
		}
	})
}

// complete is the gate, and what is left of a promotion.
func (w *watcher) complete(ctx context.Context, db *sql.DB) error {
	pos, err := w.pub.Positions(ctx)
	if err != nil {
		return err
	}
	if c := pos.Cluster; c == nil || c.Term != w.record.Term || c.State != position.Open {
		return errors.New("it is being promoted")
	}
	datastores, err := datastoresOn(ctx, w.k.cfg, db)
	if mysqlconn.IsMissing(err) {
		return errors.New("it has no data")
	}
	if err != nil {
		return err
	}
	if err := compareLast(ctx, w.pub, entities{db}, pos.Shards, datastores, w.cluster.Name); err != nil {
		return err
	}
	f := finish{cfg: w.k.cfg, env: w.k.env, cluster: w.cluster.Name, node: w.record.Node, term: w.record.Term, db: db, since: w.since}
	closed, err := f.closed(ctx)
	if err != nil {
		return err
	}
	if !closed {
		if err := LoadTerms(ctx, w.k.cfg, w.k.env, w.cluster.Name); err != nil {
			return err
		}
		if err := allowWrites(ctx, w.k.cfg, w.k.env, w.cluster.Name, w.record.Node, w.record.Term, db); err != nil {
			return err
		}
		w.k.log.Info("the master is writable again", "cluster", w.cluster.Name, "node", w.record.Node)
		return nil
	}
	if time.Since(w.since) < finishPatience {
		return errFinishing
	}
	others, err := opened(ctx, w.k.cfg, w.k.env)
	if err != nil {
		return err
	}
	defer func() {
		for _, h := range f.holders {
			_ = mysqlconn.Close(h) // nothing is pending on it
		}
	}()
	for name, c := range others {
		if name == w.cluster.Name {
			continue
		}
		h, err := openedNode(ctx, w.k.cfg, name, c)
		if err != nil {
			return fmt.Errorf("a promotion was left before it had drained all copies: %w", err)
		}
		f.holders = append(f.holders, h)
	}
	w.k.log.Info("finishing a promotion that was left", "cluster", w.cluster.Name, "node", w.record.Node, "term", w.record.Term)
	err = f.run(ctx)
	if f.unsure != nil {
		w.k.log.Warn("finished a promotion", "cluster", w.cluster.Name, "error", f.unsure)
	}
	return err
}

// closed says whether a shard is still closed in the finish's term.
func (f *finish) closed(ctx context.Context) (bool, error) {
	heads, err := mysql.Heads(ctx, f.db)
	for _, h := range heads {
		if h.Term == f.term && h.Closed() {
			return true, err
		}
	}
	return false, err
}

func (w *watcher) promote(ctx context.Context) error {
	w.nodes.cancel() // a rebuild from a master that is away leads nowhere
	out, err := PromoteCluster(ctx, w.k.cfg, w.k.env, Promote{Cluster: w.cluster.Name, Expect: w.record.Term})
	if err != nil {
		return fmt.Errorf("promotion: %w", err)
	}
	w.k.log.Warn("promoted", "cluster", out.Cluster, "node", out.Node, "term", out.Term, "restored", out.Restored, "drained", out.Drained, "lost", out.Lost, "left", out.Left, "seconds", out.Seconds)
	if w.k.promoted != nil {
		w.k.promoted(out)
	}
	return nil
}
