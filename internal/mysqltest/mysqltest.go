package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlserver"
)

// EnvFlavour names the environment variable with the flavour to test.
const EnvFlavour = "CELLOG_TEST_FLAVOUR"

// dirPrefix is that of the shared servers' directories.
const dirPrefix = "cellog-mysqltest-"

// Accounts are the accounts on every node.
var Accounts = mysqlaccounts.NewSet()

var nextID atomic.Uint32 // server ids: one per node of this process

var shared struct {
	mu   sync.Mutex
	node *Node
	dir  string
	err  error
}

// Flavour returns the flavour that tests run on.
func Flavour() mysqlserver.Flavour {
	if f := os.Getenv(EnvFlavour); f != "" {
		return mysqlserver.Flavour(f)
	}
	return mysqlserver.MariaDB
}

// Node is a server for tests.
type Node struct {
	*mysqlserver.Server
	cfg   mysqlserver.Config
	own   bool // of one test, not shared
	root  *sql.DB
	turns turns
}

// Server returns the master that all tests of this binary share.
func Server(t testing.TB) *Node {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.node == nil && shared.err == nil {
		removeStale()
		shared.dir, shared.err = os.MkdirTemp("", dirPrefix)
		if shared.err == nil {
			shared.node, shared.err = start(mysqlserver.Config{Dir: shared.dir}, true)
		}
	}
	if shared.err != nil {
		t.Fatalf("mysqltest: %v", shared.err)
	}
	return shared.node
}

// Start returns a master of the test's own, stopped when the test ends.
// options are more options of the server.
func Start(t testing.TB, options ...string) *Node {
	t.Helper()
	return startOwn(t, mysqlserver.Config{Dir: t.TempDir(), Options: options}, true)
}

func startOwn(t testing.TB, cfg mysqlserver.Config, master bool) *Node {
	t.Helper()
	n, err := start(cfg, master)
	if err != nil {
		t.Fatalf("mysqltest: %v", err)
	}
	n.own = true
	t.Cleanup(func() { n.close() })
	return n
}

// start starts a server; a master gets the accounts and is made writable.
func start(cfg mysqlserver.Config, master bool) (*Node, error) {
	cfg.Flavour = Flavour()
	cfg.ServerID = nextID.Add(1)
	srv, err := mysqlserver.Start(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	cfg.Port = srv.Port()
	n := &Node{Server: srv, cfg: cfg}
	if n.root, err = srv.Open(""); err == nil && master {
		err = n.open()
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *Node) open() error {
	if _, err := n.root.Exec("SET GLOBAL read_only = OFF"); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	return mysqlaccounts.Create(context.Background(), n.root, Accounts)
}

func (n *Node) close() {
	if n.root != nil {
		_ = n.root.Close() // its server goes too
	}
	n.Kill() // nothing in it is to be kept
}

// Restart starts the server again on the same port and directory, after Kill or
// Stop. It comes back read-only, as every server does.
func (n *Node) Restart(t testing.TB) {
	t.Helper()
	<-n.Done()
	srv, err := mysqlserver.Start(context.Background(), n.cfg)
	if err != nil {
		t.Fatalf("mysqltest: restart: %v", err)
	}
	n.Server = srv
}

// DB returns a pool of admin sessions; one packet may carry several statements.
// It is closed when the test ends.
func (n *Node) DB(t testing.TB, database string) *sql.DB {
	t.Helper()
	return n.As(t, Accounts.Admin, database)
}

// As returns a pool of an account's sessions, closed when the test ends.
func (n *Node) As(t testing.TB, a mysqlaccounts.Account, database string) *sql.DB {
	t.Helper()
	db, err := mysqlconn.Open(mysqlconn.Config{
		Addr: n.Addr(), User: a.User, Password: a.Password, Database: database,
		MultiStatements: true, KeepReadOnly: true,
	})
	if err != nil {
		t.Fatalf("mysqltest: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("mysqltest: %v", err)
		}
	})
	return db
}

// Exec runs statements as root.
func (n *Node) Exec(t testing.TB, statements string) {
	t.Helper()
	if _, err := n.root.Exec(statements); err != nil {
		t.Fatalf("mysqltest: %.200s: %v", statements, err)
	}
}

// Query returns the one value that a statement answers to root, as text.
func (n *Node) Query(t testing.TB, statement string, args ...any) string {
	t.Helper()
	var v sql.NullString
	if err := n.root.QueryRow(statement, args...).Scan(&v); err != nil {
		t.Fatalf("mysqltest: %.200s: %v", statement, err)
	}
	return v.String
}

// Main runs the tests of a package, stops the shared server, looks for leaked
// goroutines and exits.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	Stop()
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Stop ends the shared server and removes its directory. Main does it.
func Stop() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.node != nil {
		shared.node.close()
		shared.node = nil
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir) // removeStale of a later run tries again
		shared.dir = ""
	}
}

// removeStale removes what killed test runs left: directories without a server.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // the pattern is legal
	for _, dir := range dirs {
		st, err := os.Stat(dir)
		if err != nil || time.Since(st.ModTime()) < time.Minute {
			continue // gone, or just being made
		}
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue // another user's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}
