package mysqltest

import (
	"testing"

	"github.com/cellog/cellog/internal/mysqlconn"
)

func TestMain(m *testing.M) { Main(m) }

func TestAccountsHaveTheirRightsAndNoMore(t *testing.T) {
	n := Server(t)
	n.CreateShards(t, "trips", 2)
	cell := "(added_id, epoch, row_key, column_name, ref_key, body, created_at) VALUES (1, 1, 'k', 'BASE', 1, 'b', NOW(6))"
	for _, c := range []struct {
		who, query string
		denied     bool
	}{
		{"worker", "INSERT INTO trips_0001.entity " + cell, false},
		{"worker", "UPDATE trips_0001.shard_log SET last_added_id = 1", false},
		{"worker", "UPDATE trips_0001.entity SET ref_key = 2", true},
		{"worker", "DELETE FROM trips_0001.entity", true},
		{"worker", "DROP TABLE trips_0001.entity", true},
		{"worker", "DELETE FROM cellog_meta.workers", false},
		{"worker", "DELETE FROM cellog_buffer.buffered_cells", false},
		{"worker", "SET GLOBAL read_only = OFF", true},
		{"tailer", "DO (SELECT COUNT(*) FROM trips_0000.entity)", false},
		{"tailer", "INSERT INTO cellog_meta.heartbeats VALUES ('c1', 1, NOW(6))", false},
		{"tailer", "UPDATE cellog_meta.heartbeats SET beat = 2", false},
		{"tailer", "INSERT INTO trips_0000.entity " + cell, true},
		{"indexer", "CREATE TABLE trips_0000.idx_x (id INT PRIMARY KEY)", false},
		{"indexer", "DELETE FROM trips_0000.idx_x", false},
		{"indexer", "CREATE DATABASE other", true},
	} {
		account := Accounts.Worker
		switch c.who {
		case "tailer":
			account = Accounts.Tailer
		case "indexer":
			account = Accounts.Indexer
		}
		_, err := n.As(t, account, "").Exec(c.query)
		if c.denied && !mysqlconn.IsDenied(err) {
			t.Errorf("%s: %s: %v, want denied", c.who, c.query, err)
		}
		if !c.denied && err != nil {
			t.Errorf("%s: %s: %v", c.who, c.query, err)
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	n := Server(t)
	t.Run("first", func(t *testing.T) {
		n.CreateShards(t, "trips", 1)
		t.Run("sub", func(t *testing.T) { n.Meta(t) })
		n.Exec(t, "DO (SELECT COUNT(*) FROM cellog_meta.cluster)")
	})
	for _, name := range []string{"second", "third"} { // one after the other
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n.CreateShards(t, "trips", 1)
			if got := n.Query(t, "SELECT COUNT(*) FROM trips_0000.entity"); got != "0" {
				t.Error(got)
			}
		})
	}
}

func TestClusterReplicatesOverKills(t *testing.T) {
	c := Cluster(t, 1)
	minion := c.Minions[0]
	c.Master.CreateShards(t, "trips", 1)
	put := func(id string) {
		t.Helper()
		c.Master.Exec(t, "INSERT INTO trips_0000.entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) VALUES ("+id+", 1, 'k', 'BASE', "+id+", 'b', NOW(6))")
	}
	check := func(want string) {
		t.Helper()
		c.Sync(t)
		if got := minion.Query(t, "SELECT COUNT(*) FROM trips_0000.entity"); got != want {
			t.Errorf("the minion has %s cells, want %s", got, want)
		}
		if got := minion.Query(t, "SELECT @@global.read_only"); got != "1" {
			t.Error("the minion is writable")
		}
	}
	put("1")
	check("1")
	if _, err := minion.DB(t, "").Exec("SELECT 1 FROM trips_0000.entity"); err != nil {
		t.Errorf("accounts on the minion: %v", err)
	}
	minion.Kill()
	put("2")
	minion.Restart(t)
	check("2")
	c.Master.Kill()
	minion.Kill()
	c.Master.Restart(t)
	c.Master.Exec(t, "SET GLOBAL read_only = OFF")
	put("3")
	minion.Restart(t)
	check("3")
}
