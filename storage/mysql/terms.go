package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// The table cellog_meta.terms of a server holds, for each other cluster, the
// newest term that somebody has told it of, claimed or open; and, for its own
// cluster, the permission to hold copies: {term, open, node, its server's own
// name}. The name is there because the table replicates.
//
// Who writes a cell reads the terms under a shared lock in the cell's own
// transaction, and who stores a copy does so in the copy's. So a claim, which
// updates the row, waits for what is in flight and is seen by all that follows.

// TermRecord is a row of cellog_meta.terms.
type TermRecord struct {
	Cluster string      `json:"cluster"`
	Term    cellog.Term `json:"term"`
	State   string      `json:"state"` // claimed or open
	Node    string      `json:"node"`
	// ServerUUID names the server that the term opened, for good.
	ServerUUID string `json:"server_uuid"`
}

// LoadTerms tells a server about terms; older ones than it knows change
// nothing. db's account may write cellog_meta, also while the server is
// read-only if it is to be told then.
func LoadTerms(ctx context.Context, db *sql.DB, records []TermRecord) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		for _, r := range records {
			// Of one term, open comes after claimed. term is assigned last: the
			// others look at the old one.
			const newer = "VALUES(term) > term OR VALUES(term) = term AND VALUES(state) = 'open'"
			_, err := tx.ExecContext(ctx, "INSERT INTO cellog_meta.terms (cluster, term, state, node, server_uuid, updated_at) VALUES (?, ?, ?, ?, ?, NOW(6)) "+
				"ON DUPLICATE KEY UPDATE node = IF("+newer+", VALUES(node), node), server_uuid = IF("+newer+", VALUES(server_uuid), server_uuid), "+
				"updated_at = NOW(6), state = IF("+newer+", VALUES(state), state), term = GREATEST(term, VALUES(term))",
				r.Cluster, int(r.Term), r.State, r.Node, r.ServerUUID)
			if err != nil {
				return fmt.Errorf("load terms: cluster %s: %w", r.Cluster, err)
			}
		}
		return nil
	})
}

// Terms returns what a server was told, by cluster.
func Terms(ctx context.Context, db *sql.DB) ([]TermRecord, error) {
	rows, err := db.QueryContext(ctx, "SELECT cluster, term, state, node, server_uuid FROM cellog_meta.terms ORDER BY cluster")
	if err != nil {
		return nil, err
	}
	out := []TermRecord{}
	err = each(rows, func() error {
		var r TermRecord
		err := rows.Scan(&r.Cluster, &r.Term, &r.State, &r.Node, &r.ServerUUID)
		out = append(out, r)
		return err
	})
	return out, err
}

// known is what a primary knew when it was seen to have a cell: its shard's
// epoch and term, and the term of every cluster that might hold a copy.
type known struct {
	epoch   cellog.Epoch
	term    cellog.Term
	holders map[string]cellog.Term
}

// lockTerms are the statements that leave all terms in @h, as cluster=term,…,
// and hold them still until the end of the transaction.
const lockTerms = "SELECT GROUP_CONCAT(cluster, '=', term) INTO @h FROM cellog_meta.terms LOCK IN SHARE MODE; "

// parseKnown reads what lockTerms left.
func parseKnown(epoch cellog.Epoch, term cellog.Term, h sql.NullString) (*known, error) {
	k := &known{epoch: epoch, term: term, holders: map[string]cellog.Term{}}
	if h.String == "" {
		return k, nil
	}
	for _, part := range strings.Split(h.String, ",") {
		i := strings.LastIndexByte(part, '=')
		n, err := strconv.ParseInt(part[i+1:], 10, 32)
		if i < 0 || err != nil {
			return nil, fmt.Errorf("cellog_meta.terms: cannot read %q", part)
		}
		k.holders[part[:i]] = cellog.Term(n)
	}
	return k, nil
}

// errNewTerm is returned where somebody has claimed a newer term of the cell's
// cluster: its primary can no longer promise anything.
var errNewTerm = errors.New("a newer term of the cluster is claimed")

// selfName is the SQL expression that names a server for good.
func selfName(version string) string {
	if strings.Contains(version, "MariaDB") {
		return "CONCAT('mariadb-server-id-', @@global.server_id)"
	}
	return "@@global.server_uuid"
}

// ShardHead is a shard's place in its log on one server.
type ShardHead struct {
	Datastore string
	Shard     cellog.ShardID
	Epoch     cellog.Epoch
	Term      cellog.Term
	State     string
	Last      cellog.AddedID
}

// Heads returns the shard_log of every shard of a server. A shard that is dropped
// meanwhile is one that is not there.
func Heads(ctx context.Context, db *sql.DB) ([]ShardHead, error) {
	names, err := shardDatabases(ctx, db)
	if err != nil {
		return nil, err
	}
	var out []ShardHead
	for batch := range slices.Chunk(names, shardsPerLook) {
		if out, err = appendHeads(ctx, db, out, batch); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// appendHeads appends the heads of the shards with these databases. If one is
// missing it asks for each half by itself, and so leaves out the missing one.
func appendHeads(ctx context.Context, db *sql.DB, out []ShardHead, databases []string) ([]ShardHead, error) {
	parts := make([]string, len(databases))
	for i, database := range databases {
		parts[i] = "SELECT '" + database + "', epoch, term, state, last_added_id FROM `" + database + "`.shard_log WHERE id = 1"
	}
	asked := len(out)
	rows, err := db.QueryContext(ctx, strings.Join(parts, " UNION ALL "))
	if err == nil {
		err = each(rows, func() error {
			var database string
			var h ShardHead
			if err := rows.Scan(&database, &h.Epoch, &h.Term, &h.State, &h.Last); err != nil {
				return err
			}
			h.Datastore, h.Shard, _ = cellog.ParseDatabaseName(database)
			out = append(out, h)
			return nil
		})
	}
	if !mysqlconn.IsMissing(err) {
		return out, err
	}
	out = out[:asked]
	if len(databases) == 1 {
		return out, nil
	}
	half := len(databases) / 2
	if out, err = appendHeads(ctx, db, out, databases[:half]); err != nil {
		return nil, err
	}
	return appendHeads(ctx, db, out, databases[half:])
}

// shardDatabases returns the databases of shards on a server, by name.
func shardDatabases(ctx context.Context, db *sql.DB) ([]string, error) {
	rows, err := db.QueryContext(ctx, "SELECT table_schema FROM information_schema.tables WHERE table_name = 'shard_log' ORDER BY 1")
	if err != nil {
		return nil, err
	}
	var names []string
	err = each(rows, func() error {
		var database string
		if err := rows.Scan(&database); err != nil {
			return err
		}
		if _, _, ok := cellog.ParseDatabaseName(database); ok {
			names = append(names, database)
		}
		return nil
	})
	return names, err
}

// unknownOutcome says that a cell may be lost although its primary has it.
func unknownOutcome(why error) error {
	return fmt.Errorf("%w (its primary has it, but it is not safe there alone: %w)", storage.ErrOutcomeUnknown, why)
}

// Open says that workers may write to the shard.
func (h ShardHead) Open() bool { return h.State == stateOpen }

// Closed says that nobody may write to the shard yet: a promotion goes on.
func (h ShardHead) Closed() bool { return h.State == stateClosed }

// CopiesOf returns how many copies of a cluster's cells a server holds.
func CopiesOf(ctx context.Context, db *sql.DB, cluster string) (numbered, unnumbered int, err error) {
	err = db.QueryRowContext(ctx, "SELECT (SELECT COALESCE(SUM(last_id - first_id + 1), 0) FROM cellog_buffer.numbered_copies WHERE cluster = ?), "+
		"(SELECT COUNT(*) FROM cellog_buffer.buffered_cells WHERE cluster = ?)", cluster, cluster).Scan(&numbered, &unnumbered)
	return numbered, unnumbered, err
}
