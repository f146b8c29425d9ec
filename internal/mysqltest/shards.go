package mysqltest

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/schemas/sqlfiles"
)

// turns lets one test after the other have cellog_meta. A subtest shares its
// parent's turn.
type turns struct {
	mu     sync.Mutex
	cond   *sync.Cond
	holder string
}

// take waits for the turn of the test of that name; false when it has it.
func (w *turns) take(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cond == nil {
		w.cond = sync.NewCond(&w.mu)
	}
	if w.holder == name || strings.HasPrefix(name, w.holder+"/") {
		return false
	}
	for w.holder != "" {
		w.cond.Wait()
	}
	w.holder = name
	return true
}

func (w *turns) give() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holder = ""
	w.cond.Broadcast()
}

// Meta makes cellog_meta and cellog_buffer, of cluster c1, unless this test (or
// the test it is part of) has done so; they are dropped when the test ends.
func (n *Node) Meta(t testing.TB) { n.MetaOf(t, "c1") }

// MetaOf is Meta for a node of the cluster of that name.
func (n *Node) MetaOf(t testing.TB, cluster string) {
	t.Helper()
	if !n.turns.take(t.Name()) {
		return
	}
	t.Cleanup(func() {
		if !n.own {
			n.drop(t, "cellog_meta", "cellog_buffer")
		}
		n.turns.give()
	})
	n.Exec(t, "CREATE DATABASE cellog_meta; CREATE DATABASE cellog_buffer; "+statements(t, sqlfiles.Server())+
		"INSERT INTO cellog_meta.cluster (id, name) VALUES (1, '"+cluster+"')")
}

// CreateShards makes the databases of all shards of a datastore, each open in
// epoch 1, with the accounts' rights and its row in cellog_meta.datastores.
// They are dropped when the test ends. It calls Meta.
func (n *Node) CreateShards(t testing.TB, datastore string, shards int) {
	t.Helper()
	all := make([]cellog.ShardID, shards)
	for i := range all {
		all[i] = cellog.ShardID(i)
	}
	n.CreateSomeShards(t, datastore, shards, all)
}

// CreateSomeShards is CreateShards for a node that holds only some of the
// datastore's shards.
func (n *Node) CreateSomeShards(t testing.TB, datastore string, shards int, here []cellog.ShardID) {
	t.Helper()
	n.Meta(t)
	tables := statements(t, sqlfiles.Shard())
	var names []string
	for _, s := range here {
		names = append(names, cellog.DatabaseName(datastore, s))
	}
	if !n.own {
		t.Cleanup(func() { n.drop(t, names...) })
	}
	conn, err := n.root.Conn(context.Background())
	if err != nil {
		t.Fatalf("mysqltest: %v", err)
	}
	defer conn.Close()
	for _, db := range names {
		if _, err := conn.ExecContext(context.Background(), "CREATE DATABASE "+db+"; USE "+db+"; "+tables+
			"INSERT INTO shard_log (id, epoch, term, state, last_added_id, last_created_at) VALUES (1, 1, 1, 'open', 0, '2000-01-01')"); err != nil {
			t.Fatalf("mysqltest: make %s: %v", db, err)
		}
	}
	n.Exec(t, fmt.Sprintf("USE mysql; INSERT INTO cellog_meta.datastores (name, shards, partitions, created_at) VALUES ('%s', %d, %d, NOW(6))",
		datastore, shards, cellog.DefaultPartitions(shards)))
	if err := mysqlaccounts.GrantDatastore(context.Background(), n.root, Accounts, datastore, here); err != nil {
		t.Fatalf("mysqltest: %v", err)
	}
}

func (n *Node) drop(t testing.TB, databases ...string) {
	for _, db := range databases {
		if _, err := n.root.Exec("DROP DATABASE IF EXISTS " + db); err != nil {
			t.Errorf("mysqltest: drop %s: %v", db, err)
		}
	}
}

// statements returns the migrations of a folder, in their order, each ended by
// a semicolon. They are one statement each.
func statements(t testing.TB, dir fs.FS) string {
	t.Helper()
	names, err := fs.Glob(dir, "*.sql") // sorted
	if err != nil {
		t.Fatalf("mysqltest: %v", err)
	}
	var sb strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			t.Fatalf("mysqltest: %v", err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		sb.WriteString(strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(up, "-- +goose Up")), ";") + ";\n")
	}
	return sb.String()
}
