package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/forward"
	"github.com/cellog/cellog/storage"
)

// What a promotion does to shards and copies. db is a pool of an account that
// may do everything, also on a server that is read-only for others.

// The states of a shard_log.
const (
	stateOpen   = "open"
	stateClosed = "closed"
)

// ErrDeposed is returned when a shard is not closed in the epoch that a
// promotion gave it: somebody else has gone on.
var ErrDeposed = errors.New("the shard is not closed in this epoch")

// CloseShards gives shards of a server a promotion's epoch and term, and closes
// them: nobody writes until OpenShards. Those that are of the epoch already
// stay as they are. It returns them as they are then: what was added since they
// were looked at counts too.
func CloseShards(ctx context.Context, db *sql.DB, shards []ShardHead, term cellog.Term) (closed []ShardHead, err error) {
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		closed = slices.Clone(shards)
		for i := range closed {
			h := &closed[i]
			name := quote(h.Datastore, h.Shard) + ".shard_log"
			_, err := tx.ExecContext(ctx, "UPDATE "+name+" SET state = '"+stateClosed+"', epoch = ?, term = ? WHERE id = 1 AND epoch < ?", int(term), int(term), int(term))
			if err == nil {
				err = tx.QueryRowContext(ctx, "SELECT epoch, term, state, last_added_id FROM "+name+" WHERE id = 1 FOR UPDATE").Scan(&h.Epoch, &h.Term, &h.State, &h.Last)
			}
			if err != nil {
				return fmt.Errorf("close shard %s: %w", cellog.DatabaseName(h.Datastore, h.Shard), err)
			}
		}
		return nil
	})
	return closed, err
}

// OpenShards lets workers write to the shards that are closed in an epoch.
func OpenShards(ctx context.Context, db *sql.DB, shards []ShardHead, term cellog.Term) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		for _, h := range shards {
			_, err := tx.ExecContext(ctx, "UPDATE "+quote(h.Datastore, h.Shard)+".shard_log SET state = '"+stateOpen+"' WHERE id = 1 AND epoch = ? AND state = '"+stateClosed+"'", int(term))
			if err != nil {
				return fmt.Errorf("open shard %s: %w", cellog.DatabaseName(h.Datastore, h.Shard), err)
			}
		}
		return nil
	})
}

func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// RestoreCells puts cells of a shard that Kafka has and no server any more back
// into entity, under their own numbers, epochs and times. They must follow what
// is there; bodies are in stored form.
func RestoreCells(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, cells []cellog.Cell) error {
	name := quote(datastore, shard)
	return inTx(ctx, db, func(tx *sql.Tx) error {
		var last cellog.AddedID
		if err := tx.QueryRowContext(ctx, "SELECT last_added_id FROM "+name+".shard_log WHERE id = 1 FOR UPDATE").Scan(&last); err != nil {
			return err
		}
		var created time.Time
		for i := range cells {
			c := &cells[i]
			if c.AddedID != last+1 {
				return fmt.Errorf("shard %s: added_id %d does not follow %d: %w", name, c.AddedID, last, storage.ErrDamaged)
			}
			if err := insertCell(ctx, tx, name, datastore, c); err != nil {
				return err
			}
			last, created = c.AddedID, c.CreatedAt
		}
		_, err := tx.ExecContext(ctx, "UPDATE "+name+".shard_log SET last_added_id = ?, last_created_at = GREATEST(last_created_at, ?) WHERE id = 1", int64(last), created)
		return err
	})
}

func insertCell(ctx context.Context, tx *sql.Tx, name, datastore string, c *cellog.Cell) error {
	_, err := tx.ExecContext(ctx, "INSERT IGNORE INTO cellog_meta.columns (datastore, column_name, created_at) VALUES (?, ?, NOW(6))", datastore, c.Column)
	if err == nil {
		_, err = tx.ExecContext(ctx, "INSERT INTO "+name+".entity ("+cellFields+") VALUES (?, ?, ?, ?, ?, ?, ?, ?)", int64(c.AddedID), int(c.Epoch), c.Row[:], c.Column, int64(c.Ref),
			c.Body, c.CreatedAt, sql.NullString{String: c.TraceParent, Valid: c.TraceParent != ""})
	}
	if err != nil {
		return fmt.Errorf("shard %s, added_id %d: %w", name, c.AddedID, err)
	}
	return nil
}

// CopyRef names a run of numbered copies on its holder.
type CopyRef struct {
	Holder          *sql.DB
	Epoch           cellog.Epoch
	FirstID, LastID cellog.AddedID
	Bytes           int // of the row's cells
	tag             int64
}

// parse reads a row's cells, and checks that they are the ones it names.
func (r *CopyRef) parse(packed []byte, shard cellog.ShardID) ([]cellog.Cell, error) {
	cells, err := forward.ParseRun(packed, shard, r.Epoch)
	if err == nil && (cells[0].AddedID != r.FirstID || cells[len(cells)-1].AddedID != r.LastID) {
		err = errors.New("its cells have other numbers")
	}
	if err != nil {
		return nil, fmt.Errorf("cellog_buffer.numbered_copies, shard %d, epoch %d, last_id %d, tag %d: %w", shard, r.Epoch, r.LastID, r.tag, err)
	}
	return cells, nil
}

// CopyShards returns the shards of which a holder has numbered copies of a
// cluster's cells.
func CopyShards(ctx context.Context, holder *sql.DB, cluster string) ([]ShardHead, error) {
	rows, err := holder.QueryContext(ctx, "SELECT DISTINCT datastore, shard FROM cellog_buffer.numbered_copies WHERE cluster = ?", cluster)
	if err != nil {
		return nil, fmt.Errorf("copies: %w", err)
	}
	var out []ShardHead
	err = each(rows, func() error {
		var h ShardHead
		err := rows.Scan(&h.Datastore, &h.Shard)
		out = append(out, h)
		return err
	})
	return out, err
}

// CopyRefs returns the runs of numbered copies that holders have of a shard's
// cells, by their first cell's place in the shard's log. Runs may overlap; one
// whose cells are all in runs before it is left out.
func CopyRefs(ctx context.Context, holders []*sql.DB, cluster, datastore string, shard cellog.ShardID) ([]CopyRef, error) {
	var out []CopyRef
	for _, h := range holders {
		rows, err := h.QueryContext(ctx, "SELECT epoch, first_id, last_id, tag, LENGTH(cells) FROM cellog_buffer.numbered_copies WHERE cluster = ? AND datastore = ? AND shard = ?", cluster, datastore, int(shard))
		if err != nil {
			return nil, fmt.Errorf("copies of shard %s: %w", cellog.DatabaseName(datastore, shard), err)
		}
		err = each(rows, func() error {
			r := CopyRef{Holder: h}
			err := rows.Scan(&r.Epoch, &r.FirstID, &r.LastID, &r.tag, &r.Bytes)
			out = append(out, r)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("copies of shard %s: %w", cellog.DatabaseName(datastore, shard), err)
		}
	}
	slices.SortFunc(out, func(a, b CopyRef) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.FirstID, b.FirstID), cmp.Compare(b.LastID, a.LastID))
	})
	var epoch cellog.Epoch
	var covered cellog.AddedID
	return slices.DeleteFunc(out, func(r CopyRef) bool {
		if r.Epoch == epoch && r.LastID <= covered {
			return true
		}
		epoch, covered = r.Epoch, r.LastID
		return false
	}), nil
}

// copiesAtOnce bounds the copies that go in together.
const copiesAtOnce = 100

// AddCopies stores the cells of copies of a cluster's cells in a shard that is
// closed in the given epoch, in their order, each with the next number; those
// whose key is there already are left out. It returns how many went in, and of
// how many another body stood there. ErrDeposed: the shard is not closed in the
// epoch.
func AddCopies(ctx context.Context, db *sql.DB, cluster, datastore string, shard cellog.ShardID, term cellog.Term, refs []CopyRef) (added, lost int, err error) {
	var last CopyRef
	for len(refs) > 0 {
		n, cells, size := 0, 0, 0
		for n < len(refs) && (n == 0 || refs[n].Holder == refs[0].Holder && refs[n].Epoch == refs[0].Epoch && cells < copiesAtOnce && size < PageBytes) {
			cells += int(refs[n].LastID - refs[n].FirstID + 1)
			size += refs[n].Bytes
			n++
		}
		runs, err := readRuns(ctx, cluster, datastore, shard, refs[:n])
		if err != nil {
			return added, lost, err
		}
		var page []cellog.Cell
		for i, run := range runs {
			for _, c := range run {
				if c.Epoch != last.Epoch || c.AddedID > last.LastID { // the run before may have it too
					page = append(page, c)
				}
			}
			last = refs[i]
		}
		for len(page) > 0 {
			some := min(len(page), copiesAtOnce)
			a, l, err := addCells(ctx, db, datastore, shard, term, page[:some])
			if err != nil {
				return added, lost, err
			}
			added, lost, page = added+a, lost+l, page[some:]
		}
		refs = refs[n:]
	}
	return added, lost, nil
}

// readRuns fetches the cells of runs of one holder and epoch, in their order. One
// that is gone, and has no cells, was final.
func readRuns(ctx context.Context, cluster, datastore string, shard cellog.ShardID, refs []CopyRef) ([][]cellog.Cell, error) {
	type place struct {
		last cellog.AddedID
		tag  int64
	}
	at := map[place]int{}
	var ids []string
	for i, r := range refs {
		at[place{r.LastID, r.tag}] = i
		ids = append(ids, strconv.FormatInt(int64(r.LastID), 10))
	}
	rows, err := refs[0].Holder.QueryContext(ctx, "SELECT last_id, tag, cells FROM cellog_buffer.numbered_copies WHERE cluster = ? AND datastore = ? AND shard = ? AND epoch = ? AND last_id IN ("+strings.Join(ids, ",")+")",
		cluster, datastore, int(shard), int(refs[0].Epoch))
	if err != nil {
		return nil, err
	}
	out := make([][]cellog.Cell, len(refs))
	err = each(rows, func() error {
		var p place
		var packed []byte
		if err := rows.Scan(&p.last, &p.tag, &packed); err != nil {
			return err
		}
		i, ok := at[p]
		if !ok {
			return nil // another copy of the same cells
		}
		out[i], err = refs[i].parse(packed, shard)
		return err
	})
	return out, err
}

// addCells is one transaction of AddCopies.
func addCells(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, term cellog.Term, cells []cellog.Cell) (added, lost int, err error) {
	name := quote(datastore, shard)
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		var last cellog.AddedID
		var created time.Time
		err := tx.QueryRowContext(ctx, "SELECT last_added_id, last_created_at FROM "+name+".shard_log WHERE id = 1 AND epoch = ? AND state = '"+stateClosed+"' FOR UPDATE", int(term)).Scan(&last, &created)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("shard %s, epoch %d: %w", name, term, ErrDeposed)
		}
		if err != nil {
			return err
		}
		for i := range cells {
			c := &cells[i]
			var standing []byte
			err := tx.QueryRowContext(ctx, "SELECT body FROM "+name+".entity WHERE row_key = x'"+hex.EncodeToString(c.Row[:])+"' AND column_name = ? AND ref_key = ?", c.Column, int64(c.Ref)).Scan(&standing)
			if err == nil {
				if !sameBody(standing, c.Body) {
					lost++
				}
				continue
			}
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			last++
			if c.CreatedAt.Before(created) {
				c.CreatedAt = created // never decreasing within a shard
			}
			created = c.CreatedAt
			c.AddedID, c.Epoch = last, cellog.Epoch(term)
			if err := insertCell(ctx, tx, name, datastore, c); err != nil {
				return err
			}
			added++
		}
		_, err = tx.ExecContext(ctx, "UPDATE "+name+".shard_log SET last_added_id = ?, last_created_at = ? WHERE id = 1", int64(last), created)
		return err
	})
	return added, lost, err
}

// sameBody says whether two stored bodies are of one value; a damaged one is of
// none.
func sameBody(a, b []byte) bool {
	equal, err := body.Equal(a, b)
	return err == nil && equal
}

// LastCreated returns the time of a shard's newest cell, the epoch's beginning
// if there is none.
func LastCreated(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID) (time.Time, error) {
	var t time.Time
	err := db.QueryRowContext(ctx, "SELECT last_created_at FROM "+quote(datastore, shard)+".shard_log WHERE id = 1").Scan(&t)
	return t.UTC(), err
}

// DatastoresOf returns the datastores that a server records.
func DatastoresOf(ctx context.Context, db *sql.DB) ([]storage.Datastore, error) {
	return datastoresOf(ctx, db)
}
