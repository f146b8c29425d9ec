package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// node is one server with its two pools. The pools are made once; the rest is
// guarded by mu.
type node struct {
	cluster string
	storage.Node
	write   *sql.DB // multi-statement sessions with short timeouts
	read    *sql.DB
	breaker *storage.Breaker
	line    line
	copies  copyLine

	mu       sync.Mutex
	writable bool
	seen     bool // answered the last look
	beat     beat
	self     string // the SQL expression that names the server for good; "": not looked at yet
	guard    string // see guard
	looking  bool
	looked   time.Time // when the last look began
	lookErr  error     // what the last look met
}

// isWritable says whether the node answered the last look, and took writes.
func (n *node) isWritable() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen && n.writable
}

// cluster is a storage cluster and what is known of its columns.
type cluster struct {
	name    string
	nodes   []*node
	columns columnCache
}

// Store is the cell store. All methods may be called at the same time.
type Store struct {
	cfg      Config
	routes   storage.Routes
	clusters []*cluster
	byName   map[string]*cluster
	metrics  *metrics
	anchors  *anchors

	refresh refresher
	placed  sync.Map // database name -> place

	toldNoHolder atomic.Int64 // see warn

	mu     sync.Mutex
	cancel context.CancelFunc // nil unless started
	done   chan struct{}

	// unlocked breaks the order protocol; only tests that must see the order
	// break set it.
	unlocked bool
}

// New checks the configuration and makes a store; it connects to nothing yet.
func New(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, byName: map[string]*cluster{}, metrics: newMetrics(cfg.Registerer), anchors: newAnchors(), unlocked: failpoint.Hit("storage/unlocked")}
	for _, c := range cfg.Clusters {
		cl := &cluster{name: c.Name}
		for _, n := range c.Nodes {
			nd, err := openNode(cfg, c.Name, n)
			if err != nil {
				return nil, errors.Join(err, s.closePools())
			}
			cl.nodes = append(cl.nodes, nd)
		}
		s.clusters = append(s.clusters, cl)
		s.byName[c.Name] = cl
	}
	return s, nil
}

// openNode makes the pools. A writing session that goes quiet is ended by the
// server after 3 s; the pool drops idle connections before that, and the
// driver looks whether a connection was closed before it uses it.
func openNode(cfg Config, cluster string, n storage.Node) (*node, error) {
	base := mysqlconn.Config{
		Addr: n.Addr, User: n.User, Password: n.Password,
		DialTimeout: cfg.DialTimeout,
		Session:     map[string]string{"time_zone": "'+00:00'"},
	}
	w := base
	w.MultiStatements, w.MaxOpen = true, cfg.Writers
	w.Session = map[string]string{
		"time_zone": "'+00:00'", "wait_timeout": "3", "innodb_lock_wait_timeout": "2",
		"group_concat_max_len": "1000000", // for lockTerms
		// A stale route shows as a NULL number, which only a strict server
		// refuses in an INSERT of several rows.
		"sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
	}
	write, err := mysqlconn.Open(w)
	if err != nil {
		return nil, fmt.Errorf("storage/mysql: cluster %q, node %q: %w", cluster, n.Name, err)
	}
	write.SetConnMaxIdleTime(2 * time.Second)
	write.SetMaxIdleConns(cfg.Writers)
	r := base
	r.MaxOpen = cfg.Readers
	read, err := mysqlconn.Open(r)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("storage/mysql: cluster %q, node %q: %w", cluster, n.Name, err), write.Close())
	}
	read.SetMaxIdleConns(cfg.Readers)
	read.SetConnMaxIdleTime(time.Minute)
	return &node{cluster: cluster, Node: n, write: write, read: read, breaker: storage.NewBreaker()}, nil
}

// warnEvery is how often the same is said again.
const warnEvery = 5 * time.Second

// warn logs what comes with every put for as long as it lasts; told is when it
// was said last.
func (s *Store) warn(told *atomic.Int64, message string, args ...any) {
	last, now := told.Load(), time.Now().UnixNano()
	if now-last >= int64(warnEvery) && told.CompareAndSwap(last, now) {
		s.cfg.Logger.Warn(message, args...)
	}
}

func (s *Store) closePools() error {
	var errs []error
	for _, c := range s.clusters {
		for _, n := range c.nodes {
			errs = append(errs, mysqlconn.Close(n.write), mysqlconn.Close(n.read))
			n.copies.ended.Wait() // they have no connections any more
		}
	}
	return errors.Join(errs...)
}

// Start asks all servers what they hold, and returns when at least one has
// answered; later looks follow in the background. Starting twice is safe.
func (s *Store) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		return nil
	}
	if err := s.discover(ctx); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	go s.keepLooking(run, s.done)
	return nil
}

// Stop ends the background look and closes all connections; calls in flight
// fail. Stopping twice is safe; a stopped store stays stopped.
func (s *Store) Stop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
		<-s.done
	}
	return s.closePools()
}

// keepLooking looks at each server by itself: one that is frozen does not hold
// up what the others say. Where a primary may be away its cluster is looked at
// more often, for another node may take its place at any time.
func (s *Store) keepLooking(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	var looks sync.WaitGroup
	defer looks.Wait()
	t := time.NewTicker(max(s.cfg.RefreshEvery/hurry, 1))
	defer t.Stop()
	warned := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var errs []error
		answered := false
		for _, c := range s.clusters {
			every := s.cfg.RefreshEvery
			if c.ails() {
				every /= hurry
			}
			for _, n := range c.nodes {
				if n.due(every) {
					looks.Go(func() {
						n.lookedAt(s.look(ctx, n))
					})
				}
				answered = answered || n.answered()
				errs = append(errs, n.whySilent())
			}
		}
		if !answered && time.Since(warned) > s.cfg.RefreshEvery {
			s.cfg.Logger.Warn("no storage server answers", "error", errors.Join(errs...))
			warned = time.Now()
		}
	}
}

// hurry is how much more often the nodes of a cluster that ails are looked at.
const hurry = 10

// ails says that a node does not answer, or not in time, or that none takes
// writes.
func (c *cluster) ails() bool {
	writable := false
	for _, n := range c.nodes {
		if !n.breaker.Closed() || !n.answered() {
			return true
		}
		writable = writable || n.isWritable()
	}
	return !writable
}

func (n *node) answered() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen
}

// due says that a look is due, which the caller then makes.
func (n *node) due(every time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.looking || time.Since(n.looked) < every {
		return false
	}
	n.looking, n.looked = true, time.Now()
	return true
}

// lookedAt ends a look, which found err.
func (n *node) lookedAt(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looking, n.lookErr = false, err
}

// whySilent is the error of the last look.
func (n *node) whySilent() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lookErr
}

// Datastore returns what the servers record about a datastore, or
// storage.ErrUnknownDatastore.
func (s *Store) Datastore(name string) (storage.Datastore, error) { return s.routes.Datastore(name) }

// Datastores returns all datastores by name.
func (s *Store) Datastores() []storage.Datastore { return s.routes.Datastores() }

// Shards returns the number of a datastore's shards, or
// storage.ErrUnknownDatastore.
func (s *Store) Shards(datastore string) (int, error) {
	d, err := s.routes.Datastore(datastore)
	return d.Shards, err
}

// Route returns where a shard is open.
func (s *Store) Route(datastore string, shard cellog.ShardID) (storage.Route, error) {
	return s.routes.Route(datastore, shard)
}

// node returns the node a route names.
func (s *Store) node(r storage.Route) (*node, error) {
	if c := s.byName[r.Cluster]; c != nil {
		for _, n := range c.nodes {
			if n.Name == r.Node {
				return n, nil
			}
		}
	}
	return nil, fmt.Errorf("%v: no such node is configured: %w", r, storage.ErrUnavailable)
}

// quote returns a shard's database as an SQL name. Datastore names are
// letters and digits, so nothing needs escaping.
func quote(datastore string, shard cellog.ShardID) string {
	return "`" + cellog.DatabaseName(datastore, shard) + "`"
}
