package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cellog/cellog"
)

// What a node has that is about to be rebuilt, and its master has not.

// errantPage is how many cells are compared at a time. Only a test changes it.
var errantPage = 200

// ErrantCell is a cell that a node has and its master has not.
type ErrantCell struct {
	cellog.Cell
	// Conflict says that the master has another body under its key.
	Conflict bool
}

// Errant calls fn, page by page in the order of added_id, with the cells that a
// node has of a shard and its master has not, or with another body. Under an ack
// that asks for copies they were never acknowledged; under ack primary they may
// have been.
func Errant(ctx context.Context, node, master *sql.DB, datastore string, shard cellog.ShardID, fn func([]ErrantCell) error) error {
	after, err := commonPrefix(ctx, node, master, datastore, shard)
	if err != nil {
		return err
	}
	for {
		page, err := ReadEntity(ctx, node, datastore, shard, after, errantPage)
		if err != nil || len(page) == 0 {
			return err
		}
		var out []ErrantCell
		for _, c := range page {
			after = c.AddedID
			var standing []byte
			err := master.QueryRowContext(ctx, "SELECT body FROM "+quote(datastore, shard)+".entity WHERE row_key = ? AND column_name = ? AND ref_key = ?", c.Row[:], c.Column, int64(c.Ref)).Scan(&standing)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				out = append(out, ErrantCell{Cell: c})
			case err != nil:
				return err
			case !sameBody(standing, c.Body):
				out = append(out, ErrantCell{Cell: c, Conflict: true})
			}
		}
		if len(out) > 0 {
			if err := fn(out); err != nil {
				return err
			}
		}
	}
}

// Reject records on a cluster's master that a cell was not taken, as the drainer
// does with a copy, unless that is recorded: reason is conflict, and winner the
// cell that stands, or the code of the refusal.
func Reject(ctx context.Context, master *sql.DB, datastore string, shard cellog.ShardID, c cellog.Cell, reason string, winner *cellog.Cell) error {
	var epoch, id, body any
	if winner != nil {
		epoch, id, body = int(winner.Epoch), int64(winner.AddedID), winner.Body
	}
	_, err := master.ExecContext(ctx, "INSERT INTO cellog_buffer.rejected_cells (datastore, shard, row_key, column_name, ref_key, body, reason, winner_epoch, winner_added_id, winner_body, rejected_at) "+
		"SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NOW(6) FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM cellog_buffer.rejected_cells WHERE datastore = ? AND row_key = ? AND column_name = ? AND ref_key = ? "+
		"AND SHA2(body, 256) = ? AND reason = ? AND winner_epoch <=> ? AND winner_added_id <=> ?)",
		datastore, int(shard), c.Row[:], c.Column, int64(c.Ref), c.Body, reason, epoch, id, body,
		datastore, c.Row[:], c.Column, int64(c.Ref), hash(c.Body), reason, epoch, id)
	return err
}

// commonPrefix returns up to which added_id two nodes have the same cells: each
// number has one writer in its epoch, so once they differ they differ for good.
func commonPrefix(ctx context.Context, a, b *sql.DB, datastore string, shard cellog.ShardID) (cellog.AddedID, error) {
	at := func(db *sql.DB, id cellog.AddedID) (string, error) {
		var s string
		err := db.QueryRowContext(ctx, "SELECT CONCAT(epoch, ' ', HEX(row_key), ' ', column_name, ' ', ref_key) FROM "+quote(datastore, shard)+".entity WHERE added_id = ?", int64(id)).Scan(&s)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil
		}
		return s, err
	}
	var low, high cellog.AddedID // low is the same, high+1 is not or is not there
	if err := a.QueryRowContext(ctx, "SELECT COALESCE(MAX(added_id), 0) FROM "+quote(datastore, shard)+".entity").Scan(&high); err != nil {
		return 0, err
	}
	for low < high {
		mid := low + (high-low+1)/2
		x, err := at(a, mid)
		if err != nil {
			return 0, err
		}
		y, err := at(b, mid)
		if err != nil {
			return 0, err
		}
		if x != "" && x == y {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low, nil
}

// hash is what SHA2(b, 256) is.
func hash(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// carried are the tables that Carry copies: what is in them of a cell, and what
// tells one of them from another. Two bodies of one key are two copies: the
// drainer rejects the one that loses.
var carried = []struct{ table, fields, key string }{
	{"buffered_cells", "cluster, datastore, shard, row_key, column_name, ref_key, body, traceparent, buffered_at", "cluster, datastore, shard, row_key, column_name, ref_key, body"},
	{"numbered_copies", "cluster, datastore, shard, epoch, last_id, tag, first_id, term, cells, buffered_at", "cluster, datastore, shard, epoch, last_id, tag"},
	{"rejected_cells", "datastore, shard, row_key, column_name, ref_key, body, reason, winner_epoch, winner_added_id, winner_body, rejected_at", "datastore, row_key, column_name, ref_key, body, reason, rejected_at"},
}

// Carry copies what a node holds of other clusters' cells, copies and rejected
// ones, to its master, unless it is there already: the drainers go on with it
// there. It returns how many rows of either went over.
func Carry(ctx context.Context, node, master *sql.DB) (copies, rejected int, err error) {
	for _, c := range carried {
		n, err := carry(ctx, node, master, c.table, strings.Split(c.fields, ", "), strings.Split(c.key, ", "))
		if c.table == "rejected_cells" {
			rejected += n
		} else {
			copies += n
		}
		if err != nil {
			return copies, rejected, fmt.Errorf("%s: %w", c.table, err)
		}
	}
	return copies, rejected, nil
}

// carry takes over the rows of a table whose values in key the master has not.
func carry(ctx context.Context, node, master *sql.DB, table string, fields, key []string) (n int, err error) {
	var same []string
	for _, k := range key {
		if k == "body" {
			k = "SHA2(body, 256)"
		}
		same = append(same, k+" <=> ?")
	}
	insert := "INSERT INTO cellog_buffer." + table + " (" + strings.Join(fields, ", ") + ") SELECT ?" + strings.Repeat(", ?", len(fields)-1) +
		" FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM cellog_buffer." + table + " WHERE " + strings.Join(same, " AND ") + ")"
	var page [][]any
	size := 0
	put := func() error {
		err := inTx(ctx, master, func(tx *sql.Tx) error {
			for _, vals := range page {
				args := append([]any(nil), vals...)
				for _, k := range key {
					v := vals[slices.Index(fields, k)]
					if b, ok := v.([]byte); ok && k == "body" {
						v = hash(b)
					}
					args = append(args, v)
				}
				res, err := tx.ExecContext(ctx, insert, args...)
				if err != nil {
					return err
				}
				did, err := res.RowsAffected()
				if err != nil {
					return err
				}
				n += int(did)
			}
			return nil
		})
		page, size = nil, 0
		return err
	}
	rows, err := node.QueryContext(ctx, "SELECT "+strings.Join(fields, ", ")+" FROM cellog_buffer."+table)
	if err != nil {
		return 0, err
	}
	err = each(rows, func() error {
		vals, dest := make([]any, len(fields)), make([]any, len(fields))
		for i := range vals {
			dest[i] = &vals[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		for _, v := range vals {
			if b, ok := v.([]byte); ok {
				size += len(b)
			}
		}
		if page = append(page, vals); len(page) < copiesAtOnce && size < PageBytes {
			return nil
		}
		return put()
	})
	if err == nil {
		err = put()
	}
	return n, err
}
