package table

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/indexdef"
	"github.com/cellog/cellog/schemas/sqlfiles"
)

// world is a datastore of a few shards on one or two servers.
type world struct {
	shards int
	dbs    []*sql.DB
	epoch  cellog.Epoch
}

func (w *world) Shards(context.Context, string) (int, error) { return w.shards, nil }

func (w *world) ShardDB(_ context.Context, _ string, s cellog.ShardID) (*sql.DB, cellog.Epoch, error) {
	return w.dbs[int(s)%len(w.dbs)], w.epoch, nil
}

func (w *world) ReadDB(ctx context.Context, ds string, s cellog.ShardID, from cellog.ReadFrom) (*sql.DB, cellog.Origin, error) {
	db, _, err := w.ShardDB(ctx, ds, s)
	return db, cellog.Origin{From: from, Node: "n"}, err
}

func newWorld(t testing.TB, shards, servers int) *world {
	t.Helper()
	sock := os.Getenv("SCRATCH")
	w := &world{shards: shards, epoch: 1}
	for range servers {
		db, err := mysqlconn.Open(mysqlconn.Config{Addr: sock, User: "root", MultiStatements: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		w.dbs = append(w.dbs, db)
	}
	db := w.dbs[0]
	must := func(q string) {
		t.Helper()
		if _, err := db.Exec(q); err != nil {
			t.Fatal(q, err)
		}
	}
	must("DROP DATABASE IF EXISTS cellog_meta")
	must("CREATE DATABASE cellog_meta")
	must("DROP DATABASE IF EXISTS cellog_buffer")
	must("CREATE DATABASE cellog_buffer")
	run := func(files fs.FS, use string) {
		names, _ := fs.Glob(files, "*.sql")
		for _, n := range names {
			b, _ := fs.ReadFile(files, n)
			q := strings.TrimPrefix(string(b), "-- +goose Up\n")
			must(use + q)
		}
	}
	run(sqlfiles.Server(), "")
	for s := range shards {
		name := cellog.DatabaseName("trips", cellog.ShardID(s))
		must("DROP DATABASE IF EXISTS " + name)
		must("CREATE DATABASE " + name)
		run(sqlfiles.Shard(), "USE "+name+";")
		must("INSERT INTO " + name + ".shard_log VALUES (1, 1, 1, 'open', 0, '2026-01-01')")
	}
	return w
}

func newTables(t testing.TB, w *world) *Tables {
	t.Helper()
	tables, err := New(Config{Places: w, MultiStatements: true})
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
			rows, err := w.dbs[0].Query("SELECT * FROM " + table + " ORDER BY row_key, version")
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
