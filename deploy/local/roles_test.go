package local

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
)

// node finds a node by name.
func node(t *testing.T, l *Local, name string) Node {
	t.Helper()
	for _, c := range l.Clusters() {
		for _, n := range c.Nodes {
			if n.Name == name {
				return n
			}
		}
	}
	t.Fatalf("no node %s", name)
	return Node{}
}

func adminOf(t *testing.T, l *Local, name string) *sql.DB {
	t.Helper()
	n := node(t, l, name)
	return open(t, n.Addr, n.User, n.Password)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkReadOnly(t *testing.T, l *Local, name string, want bool) {
	t.Helper()
	if s, err := mysqlreplica.Identity(context.Background(), adminOf(t, l, name)); err != nil || s.ReadOnly != want {
		t.Errorf("%s: read-only %v, want %v: %v", name, s.ReadOnly, want, err)
	}
}

// checkFollows checks whom a node follows; nobody if source is empty.
func checkFollows(t *testing.T, l *Local, name, source string) {
	t.Helper()
	if source != "" {
		source = node(t, l, source).Addr
	}
	st, err := mysqlreplica.Status(context.Background(), adminOf(t, l, name))
	if err != nil || st.Source != source {
		t.Errorf("%s follows %+v, want %q: %v", name, st, source, err)
	}
}

// leaveReadOnly is one cluster of a and b for a caller that decides.
func leaveReadOnly(t *testing.T) (cfg Config, back chan struct{}) {
	t.Helper()
	cfg, back = config(t.TempDir()), make(chan struct{}, 8)
	cfg.Clusters, cfg.Minions, cfg.KafkaBrokers, cfg.LeaveReadOnly = 1, []int{1}, []string{"127.0.0.1:1"}, true
	cfg.Restarted = func() { back <- struct{}{} }
	return cfg, back
}

func kill(t *testing.T, l *Local, back chan struct{}, name string) {
	t.Helper()
	must(t, syscall.Kill(node(t, l, name).PID, syscall.SIGKILL))
	select {
	case <-back:
	case <-time.After(time.Minute):
		t.Fatal("it did not come back: ", l.Ready())
	}
	must(t, l.Ready())
}

func TestLeaveReadOnlyOpensNoNodeButAtTheVeryFirstStart(t *testing.T) {
	cfg, back := leaveReadOnly(t)
	l := start(t, cfg)
	checkReadOnly(t, l, "c1a", false)
	checkReadOnly(t, l, "c1b", true)
	makeTables(t, adminOf(t, l, "c1a"))
	if _, err := adminOf(t, l, "c1a").Exec("INSERT INTO d.t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	count(t, adminOf(t, l, "c1b"), 1)
	for _, name := range []string{"c1a", "c1b"} {
		kill(t, l, back, name)
		checkReadOnly(t, l, name, true)
	}
	checkFollows(t, l, "c1a", "")
	checkFollows(t, l, "c1b", "c1a")

	// A promotion: b is the master, a its minion.
	ctx := context.Background()
	b := adminOf(t, l, "c1b")
	must(t, mysqlreplica.Forget(ctx, b))
	must(t, mysqlreplica.SetReadOnly(ctx, b, false))
	a := l.Accounts().Replica
	must(t, mysqlreplica.Follow(ctx, adminOf(t, l, "c1a"), mysqlreplica.Source{Addr: node(t, l, "c1b").Addr, User: a.User, Password: a.Password}))
	for cluster, name := range map[string]string{"c9": "c1a", "c1": "c2a"} {
		if err := l.SetMaster(cluster, name); err == nil {
			t.Errorf("master of %s: %s", cluster, name)
		}
	}
	must(t, l.SetMaster("c1", "c1b"))
	for round := range 2 {
		if n := l.Clusters()[0].Nodes[0]; n.Name != "c1b" || n.Role != Master {
			t.Errorf("round %d: the master is %+v", round, n)
		}
		kill(t, l, back, "c1a")
		kill(t, l, back, "c1b")
		checkReadOnly(t, l, "c1a", true)
		checkReadOnly(t, l, "c1b", true)
		checkFollows(t, l, "c1a", "c1b")
		checkFollows(t, l, "c1b", "")
		must(t, mysqlreplica.SetReadOnly(ctx, adminOf(t, l, "c1b"), false))
		if _, err := adminOf(t, l, "c1b").Exec("INSERT INTO d.t VALUES (?)", round+2); err != nil {
			t.Fatal(err)
		}
		count(t, adminOf(t, l, "c1a"), round+2)
		stop(t, l)
		l = start(t, cfg) // all of it again
		checkReadOnly(t, l, "c1b", true)
		checkFollows(t, l, "c1a", "c1b")
	}
	stop(t, l)

	// Without the caller's promise, the master that was set is opened.
	cfg.LeaveReadOnly = false
	l = start(t, cfg)
	checkReadOnly(t, l, "c1a", true)
	checkReadOnly(t, l, "c1b", false)
	checkFollows(t, l, "c1a", "c1b")
}

func TestANodeWhoseDataIsGoneComesBackEmptyAndIsRebuilt(t *testing.T) {
	cfg, back := leaveReadOnly(t)
	l := start(t, cfg)
	ctx, a := context.Background(), adminOf(t, l, "c1a")
	makeTables(t, a)
	for _, q := range []string{
		"CREATE DATABASE cellog_meta", "CREATE TABLE cellog_meta.cluster (id TINYINT PRIMARY KEY, name VARCHAR(64)) ENGINE = InnoDB",
		"INSERT INTO cellog_meta.cluster VALUES (1, 'c1')", "INSERT INTO d.t VALUES (1)",
	} {
		if _, err := a.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	count(t, adminOf(t, l, "c1b"), 1)
	must(t, mysqlreplica.Forget(ctx, adminOf(t, l, "c1b")))
	must(t, mysqlreplica.SetReadOnly(ctx, adminOf(t, l, "c1b"), false))
	must(t, l.SetMaster("c1", "c1b"))

	// The directory goes first: a server that comes back at once would keep rm
	// from its work.
	must(t, os.RemoveAll(filepath.Join(cfg.DataDir, "clusters", "c1", "c1a")))
	kill(t, l, back, "c1a")
	checkEmpty := func() {
		t.Helper()
		checkReadOnly(t, l, "c1a", true)
		checkFollows(t, l, "c1a", "")
		a := adminOf(t, l, "c1a")
		if gtids, err := mysqlreplica.GTIDs(ctx, a); err != nil || gtids != "" {
			t.Errorf("it has transactions of its own: %s %v", gtids, err)
		}
		var name string
		if err := a.QueryRow("SELECT name FROM cellog_meta.cluster").Scan(&name); !mysqlconn.IsMissing(err) {
			t.Errorf("it is a node of %q: %v", name, err)
		}
		acc := l.Accounts()
		for _, who := range []struct{ user, password string }{{acc.Worker.User, acc.Worker.Password}, {acc.Tailer.User, acc.Tailer.Password},
			{acc.Indexer.User, acc.Indexer.Password}, {acc.Replica.User, acc.Replica.Password}} {
			if err := open(t, node(t, l, "c1a").Addr, who.user, who.password).Ping(); err != nil {
				t.Errorf("%s: %v", who.user, err)
			}
		}
		if _, err := open(t, node(t, l, "c1a").Addr, acc.Worker.User, acc.Worker.Password).Exec("CREATE DATABASE cellog_meta"); err == nil {
			t.Error("it takes writes")
		}
	}
	checkEmpty()
	kill(t, l, back, "c1a") // it is as it was
	checkEmpty()
	stop(t, l)
	must(t, os.RemoveAll(filepath.Join(cfg.DataDir, "clusters", "c1", "c1a")))
	l = start(t, cfg) // gone while nothing ran
	checkEmpty()
	must(t, mysqlreplica.SetReadOnly(ctx, adminOf(t, l, "c1b"), false))

	config := func(name string) mysqlconn.Config {
		n := node(t, l, name)
		return mysqlconn.Config{Addr: n.Addr, User: n.User, Password: n.Password}
	}
	replica := l.Accounts().Replica
	must(t, mysqlreplica.Rebuild(ctx, mysqlreplica.RebuildConfig{From: config("c1b"), To: config("c1a"), Source: mysqlreplica.Source{User: replica.User, Password: replica.Password}}))
	follows := func(id int) {
		t.Helper()
		if _, err := adminOf(t, l, "c1b").Exec("UPDATE cellog_meta.cluster SET name = ?", fmt.Sprint(id)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, time.Minute, func() error {
			var name string
			if err := adminOf(t, l, "c1a").QueryRow("SELECT name FROM cellog_meta.cluster").Scan(&name); err != nil || name != fmt.Sprint(id) {
				return fmt.Errorf("%q, want %d: %w", name, id, err)
			}
			return nil
		})
	}
	follows(2)
	kill(t, l, back, "c1a")
	checkReadOnly(t, l, "c1a", true)
	follows(3)
	if raw, err := os.ReadFile(filepath.Join(cfg.DataDir, "topology.json")); err != nil || !strings.Contains(string(raw), `"master": "c1b"`) {
		t.Errorf("%s %v", raw, err)
	}
}
