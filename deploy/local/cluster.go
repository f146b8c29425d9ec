package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqlserver"
)

// replicationTimeout bounds how long a minion may take to follow its master.
const replicationTimeout = time.Minute

// cluster is a running storage cluster. start, then supervise for each node,
// then stop when those have returned.
type cluster struct {
	cfg      Config
	bin      mysqlserver.Binary
	state    *clusterState
	accounts mysqlaccounts.Set

	mu      sync.Mutex            // guards the fields below, and state.Master
	servers []*mysqlserver.Server // as state.Nodes; nil before the first start
	down    map[string]error      // by node: why it is not up again yet
}

func (c *cluster) start(ctx context.Context) error {
	c.servers = make([]*mysqlserver.Server, len(c.state.Nodes))
	g, gctx := errgroup.WithContext(ctx)
	for i := range c.state.Nodes {
		g.Go(func() error { return c.startNode(gctx, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// The master first: the others may have to wait for what it has.
	master := c.masterIndex()
	if err := c.settle(ctx, master); err != nil {
		return fmt.Errorf("node %s: %w", c.state.Nodes[master].Name, err)
	}
	g, gctx = errgroup.WithContext(ctx)
	for i, n := range c.state.Nodes {
		if i == master {
			continue
		}
		g.Go(func() error {
			if err := c.settle(gctx, i); err != nil {
				return fmt.Errorf("node %s: %w", n.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c.state.Ready = true
	return nil
}

// settle makes node i, which is up and read-only, what it is to be.
func (c *cluster) settle(ctx context.Context, i int) error {
	s, isMaster := c.server(i), i == c.masterIndex()
	if c.state.Ready {
		made, err := c.makeLostAccounts(ctx, s)
		if err != nil {
			return err
		}
		if made {
			c.cfg.Logger.Warn("the node's data is gone: it stays empty, read-only and alone until it is rebuilt from another one", "node", c.state.Nodes[i].Name)
			return nil
		}
		if c.cfg.LeaveReadOnly {
			return nil
		}
	}
	if isMaster {
		return c.open(ctx, s)
	}
	return c.follow(ctx, s, c.master())
}

// makeLostAccounts makes the accounts on a server whose data directory was
// removed: it came up from a template. They are in no binlog, since the other
// servers have them.
func (c *cluster) makeLostAccounts(ctx context.Context, s *mysqlserver.Server) (made bool, err error) {
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: s.Socket(), User: "root", KeepReadOnly: true, MaxOpen: 1, Session: map[string]string{"sql_log_bin": "0"}})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
	// The right that mysqlaccounts.Create gives last.
	var whole bool
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) > 0 FROM mysql.user WHERE User = ? AND Repl_slave_priv = 'Y'", c.accounts.Replica.User).Scan(&whole); err != nil {
		return false, fmt.Errorf("look for the accounts: %w", err)
	}
	if whole {
		return false, nil
	}
	// super_read_only, MySQL's, would refuse root too; read_only stays on.
	if s.Flavour() == mysqlserver.MySQL {
		if _, err := db.ExecContext(ctx, "SET GLOBAL super_read_only = OFF"); err != nil {
			return false, fmt.Errorf("make the accounts: %w", err)
		}
	}
	if err := mysqlaccounts.Create(ctx, db, c.accounts); err != nil {
		return false, err
	}
	return true, mysqlreplica.SetReadOnly(ctx, db, true)
}

// serverConfig is how node i is started.
func (c *cluster) serverConfig(i int) mysqlserver.Config {
	n := c.state.Nodes[i]
	var env []string
	if c.cfg.ServerEnv != nil {
		env = c.cfg.ServerEnv(n.Name)
	}
	return mysqlserver.Config{
		Env:     env,
		Dir:     filepath.Join(c.cfg.DataDir, "clusters", c.state.Name, n.Name),
		Flavour: c.bin.Flavour, Binary: c.bin.Path, Port: n.Port, ServerID: n.ServerID,
		BufferPool: c.cfg.BufferPool, TemplateDir: c.cfg.TemplateDir,
		// The tailer needs the log of a few minutes; what is older it reads from
		// the tables.
		Options: []string{"--max-binlog-size=256M", "--binlog-expire-logs-seconds=604800"},
	}
}

// startNode starts a server on its port, or on another one if that is taken.
func (c *cluster) startNode(ctx context.Context, i int) error {
	n, cfg := c.state.Nodes[i], c.serverConfig(i)
	s, err := mysqlserver.Start(ctx, cfg)
	if errors.Is(err, mysqlserver.ErrPortTaken) && cfg.Port != 0 {
		c.cfg.Logger.Warn("the port is taken, choosing another one", "node", n.Name, "port", cfg.Port)
		cfg.Port = 0
		s, err = mysqlserver.Start(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	n.Port = s.Port()
	c.setServer(i, s)
	c.cfg.Logger.Info("server is up", "node", n.Name, "addr", s.Addr(), "pid", s.PID())
	return nil
}

func (c *cluster) server(i int) *mysqlserver.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[i]
}

func (c *cluster) setServer(i int, s *mysqlserver.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[i] = s
}

func (c *cluster) master() *mysqlserver.Server { return c.server(c.masterIndex()) }

// masterIndex is the place of the master among the nodes.
func (c *cluster) masterIndex() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, slices.IndexFunc(c.state.Nodes, func(n *nodeState) bool { return n.Name == c.state.Master }))
}

// open makes the master writable, and the first time also makes the accounts.
func (c *cluster) open(ctx context.Context, master *mysqlserver.Server) error {
	db, err := master.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := mysqlreplica.SetReadOnly(ctx, db, false); err != nil {
		return err
	}
	if c.state.Ready {
		return nil
	}
	return mysqlaccounts.Create(ctx, db, c.accounts)
}

// follow makes a minion replicate from the master, unless it does so by itself.
func (c *cluster) follow(ctx context.Context, minion, master *mysqlserver.Server) error {
	ctx, cancel := context.WithTimeout(ctx, replicationTimeout)
	defer cancel()
	r, err := minion.Replication(ctx)
	if err != nil {
		return err
	}
	if !r.Configured || r.Source != master.Addr() {
		if err := minion.Follow(ctx, master, c.accounts.Replica.User, c.accounts.Replica.Password); err != nil {
			return err
		}
	}
	db, err := minion.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := mysqlreplica.WaitReceivingAndApplying(ctx, db); err != nil {
		return err
	}
	if c.state.Ready {
		return nil
	}
	// The accounts have to be there before anybody logs in.
	gtids, err := master.GTIDs(ctx)
	if err != nil {
		return err
	}
	return minion.WaitForGTIDs(ctx, gtids)
}

func (c *cluster) describe() Cluster {
	out := Cluster{Name: c.state.Name}
	master := c.masterIndex()
	for i, n := range c.state.Nodes {
		s := c.server(i)
		node := Node{
			Name: n.Name, Role: Minion, Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port)), Socket: s.Socket(), PID: s.PID(),
			User: c.accounts.Admin.User, Password: c.accounts.Admin.Password,
		}
		if i == master {
			node.Role = Master
			out.Nodes = append([]Node{node}, out.Nodes...)
			continue
		}
		out.Nodes = append(out.Nodes, node)
	}
	return out
}

// stop stops the minions and then the master.
func (c *cluster) stop(ctx context.Context) error {
	errs, master := make([]error, len(c.servers)), c.masterIndex()
	for _, role := range []string{Minion, Master} {
		var wg sync.WaitGroup
		for i := range c.servers {
			s := c.server(i)
			if s == nil || (i == master) != (role == Master) {
				continue
			}
			wg.Go(func() { errs[i] = s.Stop(ctx) })
		}
		wg.Wait()
	}
	return errors.Join(errs...)
}
