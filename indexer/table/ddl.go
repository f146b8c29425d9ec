package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
)

func sqlType(t indexer.Type) string {
	switch t {
	case indexer.UUID:
		return "BINARY(16)"
	case indexer.String:
		// Bytes, not characters: no collation of either flavour compares
		// UTF-8 exactly (trailing spaces are ignored in the common ones).
		return fmt.Sprintf("VARBINARY(%d)", indexer.MaxString)
	case indexer.Int64:
		return "BIGINT"
	case indexer.Decimal:
		return "DECIMAL(38,10)"
	case indexer.Float64:
		return "DOUBLE"
	case indexer.Bool:
		return "TINYINT"
	case indexer.DateTime:
		return "DATETIME(6)"
	}
	panic("index tables: no column type for " + t.String())
}

// createEntries returns the DDL of an index's entries in one shard.
func createEntries(ix *indexer.Index, shard cellog.ShardID) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n", entryTable(ix, shard))
	for i, f := range ix.Fields() {
		null := "NULL"
		if i == 0 {
			null = "NOT NULL"
		}
		fmt.Fprintf(&b, "  %s %s %s,\n", fieldColumn(f), sqlType(f.Type), null)
	}
	fmt.Fprintf(&b, "  row_key BINARY(16) NOT NULL,\n  version BINARY(9) NOT NULL,\n")
	fmt.Fprintf(&b, "  PRIMARY KEY (%s, row_key)\n) ENGINE = InnoDB ROW_FORMAT = DYNAMIC", fieldColumn(ix.Fields()[0]))
	return b.String()
}

// createHome returns the DDL of an index's home rows in one shard.
func createHome(ix *indexer.Index, shard cellog.ShardID) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n", homeTable(ix, shard))
	fmt.Fprintf(&b, "  row_key BINARY(16) NOT NULL PRIMARY KEY,\n  version BINARY(9) NOT NULL,\n")
	for i, c := range ix.Columns() {
		fmt.Fprintf(&b, "  ref_%d BIGINT NULL COMMENT 'newest ref_key of %s',\n  added_%d BIGINT NULL,\n", i+1, c.Key, i+1)
	}
	for _, f := range ix.Fields() {
		fmt.Fprintf(&b, "  %s %s NULL,\n", fieldColumn(f), sqlType(f.Type))
	}
	fmt.Fprintf(&b, "  removals MEDIUMBLOB NULL COMMENT 'shard values whose entries must go'\n) ENGINE = InnoDB ROW_FORMAT = DYNAMIC")
	return b.String()
}

// The states of an index on a server.
const (
	stateBuilding = "building"
	stateReady    = "ready"
)

// Ensure makes the index's tables in all shards where they are missing, and
// records the index on every server, as building if it is new. It can be
// repeated, and goes on where an earlier call was cut off. It returns
// indexer.ErrDefinition when a server knows the index with another definition,
// and whether the index is still building on any server.
func (t *Tables) Ensure(ctx context.Context, ix *indexer.Index) (building bool, err error) {
	servers, of, err := t.places(ctx, ix.Datastore())
	if err != nil {
		return false, fmt.Errorf("index %s: %w", ix, err)
	}
	shards := len(of)
	var unready atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	for db, here := range servers {
		g.Go(func() error {
			state, err := t.ensureServer(ctx, db, ix, shards, here)
			if state == stateBuilding {
				unready.Store(true)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return false, fmt.Errorf("index %s: make tables: %w", ix, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled[ix] = of
	return unready.Load(), nil
}

func (t *Tables) ensureServer(ctx context.Context, db *sql.DB, ix *indexer.Index, shards int, here []cellog.ShardID) (state string, err error) {
	_, err = db.ExecContext(ctx, `INSERT IGNORE INTO cellog_meta.index_states
		(datastore, index_name, version, definition, state, updated_at) VALUES (?, ?, 1, ?, ?, ?)`,
		ix.Datastore(), ix.Name(), ix.Describe(), stateBuilding, time.Now().UTC())
	if err != nil {
		return "", err
	}
	var recorded string
	err = db.QueryRowContext(ctx, `SELECT definition, state FROM cellog_meta.index_states
		WHERE datastore = ? AND index_name = ? AND version = 1`, ix.Datastore(), ix.Name()).Scan(&recorded, &state)
	if err != nil {
		return "", err
	}
	if recorded != ix.Describe() {
		return "", fmt.Errorf("%w: its tables are of %s, the definition says %s", indexer.ErrDefinition, recorded, ix.Describe())
	}
	have, err := existingTables(ctx, db, ix)
	if err != nil {
		return "", err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(t.cfg.Parallel)
	for _, shard := range here {
		if have[shard] {
			continue
		}
		g.Go(func() error {
			// The home table last: where it is, both are.
			for _, ddl := range []string{createEntries(ix, shard), createHome(ix, shard)} {
				if _, err := db.ExecContext(gctx, ddl); err != nil {
					return fmt.Errorf("shard %d: %w", shard, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	return state, inBlocks(shards, 1000, func(from, to int) error {
		gates := &stmt{head: "INSERT IGNORE INTO cellog_meta.index_gates (datastore, shard) VALUES"}
		sources := &stmt{head: "INSERT IGNORE INTO cellog_meta.index_sources (datastore, index_name, shard, number) VALUES"}
		for s := from; s < to; s++ {
			gates.row(ix.Datastore(), s)
			sources.row(ix.Datastore(), ix.Name(), s, 0)
		}
		return execAll(ctx, db, []*stmt{gates, sources}, "")
	})
}

// existingTables returns the shards whose tables are there.
func existingTables(ctx context.Context, db *sql.DB, ix *indexer.Index) (map[cellog.ShardID]bool, error) {
	rows, err := db.QueryContext(ctx, "SELECT table_schema FROM information_schema.tables WHERE table_name = ?", "idx_"+ix.Name()+"_home")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	have := map[cellog.ShardID]bool{}
	for rows.Next() {
		var schema string
		if err := rows.Scan(&schema); err != nil {
			return nil, err
		}
		if ds, shard, ok := cellog.ParseDatabaseName(schema); ok && ds == ix.Datastore() {
			have[shard] = true
		}
	}
	return have, rows.Err()
}

// MarkReady records on every server that the index has seen all cells that
// there were when it started.
func (t *Tables) MarkReady(ctx context.Context, ix *indexer.Index) error {
	_, servers, err := t.servers(ctx, ix.Datastore())
	if err != nil {
		return fmt.Errorf("index %s: %w", ix, err)
	}
	for db := range servers {
		_, err := db.ExecContext(ctx, `UPDATE cellog_meta.index_states SET state = ?, updated_at = ?
			WHERE datastore = ? AND index_name = ? AND version = 1 AND state = ?`,
			stateReady, time.Now().UTC(), ix.Datastore(), ix.Name(), stateBuilding)
		if err != nil {
			return fmt.Errorf("index %s: %w", ix, err)
		}
	}
	return nil
}

func inBlocks(n, size int, fn func(from, to int) error) error {
	for from := 0; from < n; from += size {
		if err := fn(from, min(from+size, n)); err != nil {
			return err
		}
	}
	return nil
}
