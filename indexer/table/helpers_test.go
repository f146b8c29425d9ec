package table

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/indexdef"
)

func TestMain(m *testing.M) {
	// Each case is many transactions; the command line may ask for more.
	if err := flag.Set("rapid.checks", "40"); err != nil {
		panic(err)
	}
	code := m.Run()
	kafkatest.Shutdown()
	mysqltest.Stop()
	if code == 0 {
		if err := goleak.Find(kafkatest.LeftBehind); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// world is a datastore of a few shards on one or two servers.
type world struct {
	shards int
	dbs    []*sql.DB // as the indexer
	admin  []*sql.DB
	nodes  []*mysqltest.Node
	epoch  cellog.Epoch
}

func (w *world) Shards(context.Context, string) (int, error) { return w.shards, nil }

func (w *world) ShardDB(_ context.Context, _ string, s cellog.ShardID) (*sql.DB, cellog.Epoch, error) {
	return w.db(int(s)), w.epoch, nil
}

func (w *world) ReadDB(ctx context.Context, ds string, s cellog.ShardID, from cellog.ReadFrom) (*sql.DB, cellog.Origin, error) {
	db, _, err := w.ShardDB(ctx, ds, s)
	return db, cellog.Origin{From: from, Node: "n"}, err
}

// newWorld makes a datastore on one server (the shared one) or on two, even
// shards on the first.
func newWorld(t testing.TB, shards, servers int) *world {
	t.Helper()
	w := &world{shards: shards, epoch: 1}
	for i := range servers {
		var here []cellog.ShardID
		for s := i; s < shards; s += servers {
			here = append(here, cellog.ShardID(s))
		}
		n := mysqltest.Server(t)
		if i > 0 {
			n = mysqltest.Start(t)
		}
		n.CreateSomeShards(t, "trips", shards, here)
		w.dbs = append(w.dbs, n.As(t, mysqltest.Accounts.Indexer, ""))
		w.admin = append(w.admin, n.DB(t, ""))
		w.nodes = append(w.nodes, n)
	}
	return w
}

func (w *world) db(s int) *sql.DB { return w.dbs[s%len(w.dbs)] }

func newTables(t testing.TB, w *world) *Tables {
	t.Helper()
	tables, err := New(Config{Places: w})
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func mustIndex(t testing.TB, name string, columns ...indexdef.Column) *indexer.Index {
	t.Helper()
	ix, err := indexer.NewIndex(indexdef.Definition{Datastore: "trips", Table: name, Columns: columns})
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

// dump returns the index's tables, byte for byte.
func dump(t testing.TB, w *world, ix *indexer.Index) string {
	t.Helper()
	var b strings.Builder
	for s := range w.shards {
		for _, table := range []string{entryTable(ix, cellog.ShardID(s)), homeTable(ix, cellog.ShardID(s))} {
			rows, err := w.db(s).Query("SELECT * FROM " + table + " ORDER BY row_key, version")
			if err != nil {
				t.Fatal(err)
			}
			columns, _ := rows.Columns()
			vals := make([]sql.RawBytes, len(columns))
			dest := make([]any, len(columns))
			for i := range vals {
				dest[i] = &vals[i]
			}
			for rows.Next() {
				if err := rows.Scan(dest...); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "%s", table)
				for i, v := range vals {
					if v == nil {
						fmt.Fprintf(&b, " %s=NULL", columns[i])
					} else {
						fmt.Fprintf(&b, " %s=%q", columns[i], v)
					}
				}
				b.WriteByte('\n')
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			rows.Close()
		}
	}
	return b.String()
}

// clear empties the index's tables and what is known of it.
func (w *world) clear(t testing.TB, ix *indexer.Index) {
	t.Helper()
	for i, db := range w.dbs {
		stmts := []string{"UPDATE cellog_meta.index_sources SET number = 0", "DELETE FROM cellog_meta.index_progress", "DELETE FROM cellog_meta.index_applied"}
		for s := i; s < w.shards; s += len(w.dbs) {
			stmts = append(stmts, "DELETE FROM "+entryTable(ix, cellog.ShardID(s)), "DELETE FROM "+homeTable(ix, cellog.ShardID(s)))
		}
		if _, err := db.Exec(strings.Join(stmts, ";")); err != nil {
			t.Fatal(err)
		}
	}
}

// cpu returns the processor time that the servers have used: on a busy machine
// it says more than the clock.
func (w *world) cpu(t testing.TB) time.Duration {
	t.Helper()
	ticks := 0
	for _, n := range w.nodes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID()))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, f := range fields[11:13] { // utime, stime
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}
