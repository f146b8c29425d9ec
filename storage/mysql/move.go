package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/sqlfiles"
	"github.com/cellog/cellog/storage"
)

// What a move does to a shard on the cluster that has it and on the one that is
// to get it. Only final cells are copied, so a copy is never wrong, whatever
// becomes of the move. db is a pool of an account that may do everything.

// The states of a shard_log while its shard moves: on the old owner moving:NEW,
// for good once it is handed over; on the new one copying, then arriving, when all
// is there, until it is open. The mark of the mover that copied its index tables
// follows both.
const (
	stateMoving   = "moving:"
	stateCopying  = "copying"
	stateArriving = "arriving"
)

var (
	// ErrNotThere is returned when a shard is not in the state in which a step
	// of a move must find it: somebody else has gone on, or a promotion has
	// voided the move.
	ErrNotThere = errors.New("the shard is not in the state that the move left it in")

	// ErrDiffers is returned when two servers have different cells under the
	// same number.
	ErrDiffers = errors.New("the copy of the shard differs")
)

// MovingTo returns the cluster that the shard is moving to, or has moved to;
// empty if it is not.
func (h ShardHead) MovingTo() string {
	to, _ := strings.CutPrefix(h.State, stateMoving)
	if to == h.State {
		return ""
	}
	return to
}

// Word is the state without a mover's mark, which is nobody's business.
func (h ShardHead) Word() string {
	word, _, _ := strings.Cut(h.State, " ")
	return word
}

// Arriving says that the shard is a copy with all that it needs to be opened.
func (h ShardHead) Arriving() bool { return strings.HasPrefix(h.State, stateArriving) }

// Foreign says that the shard is a copy of another cluster's, or was left by a
// move.
func (h ShardHead) Foreign() bool { return strings.HasPrefix(h.State, stateCopying) || h.Arriving() }

// Head returns a shard's place on a server; ok is false if it is not there.
func Head(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID) (h ShardHead, ok bool, err error) {
	h = ShardHead{Datastore: datastore, Shard: shard}
	err = db.QueryRowContext(ctx, "SELECT epoch, term, state, last_added_id FROM "+quote(datastore, shard)+".shard_log WHERE id = 1").Scan(&h.Epoch, &h.Term, &h.State, &h.Last)
	if errors.Is(err, sql.ErrNoRows) || mysqlconn.IsMissing(err) {
		return h, false, nil
	}
	return h, err == nil, err
}

// PrepareCopy makes an empty shard on a cluster's master to copy to, with the
// tables of c.Name's shards and the datastore's record; one that is there and was
// left by an earlier move, before the given epoch, becomes a copy again.
func PrepareCopy(ctx context.Context, cluster storage.Cluster, c CreateConfig, shard cellog.ShardID, epoch cellog.Epoch) error {
	m, err := masterOf(ctx, cluster)
	if err != nil {
		return err
	}
	defer func() { _ = m.db.Close() }() // nothing is pending on it
	// Two movers at a time would make the same tables.
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // which ends the lock, at the latest with the pool
	var locked sql.NullInt32
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 60)", "cellog-move-"+cellog.DatabaseName(c.Name, shard)).Scan(&locked); err != nil {
		return err
	}
	if locked.Int32 != 1 {
		return fmt.Errorf("another mover is making %s on the master of cluster %s: try again", cellog.DatabaseName(c.Name, shard), cluster.Name)
	}
	if err := m.prepareServer(ctx, c, cluster.Name); err != nil {
		return err
	}
	if err := m.record(ctx, c); err != nil {
		return err
	}
	database := cellog.DatabaseName(c.Name, shard)
	if _, err := m.db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS `"+database+"`"); err != nil {
		return err
	}
	if err := m.migrate(ctx, database, sqlfiles.Shard()); err != nil {
		return err
	}
	if _, err := m.db.ExecContext(ctx, "INSERT IGNORE INTO `"+database+"`.shard_log (id, epoch, term, state, last_added_id, last_created_at) VALUES (1, 0, 0, '"+stateCopying+"', 0, ?)", time.Unix(0, 0).UTC()); err != nil {
		return err
	}
	// An owner's epoch is higher.
	if _, err := m.db.ExecContext(ctx, "UPDATE `"+database+"`.shard_log SET state = '"+stateCopying+"' WHERE id = 1 AND epoch <= ? AND state LIKE '"+stateMoving+"%'", int(epoch)); err != nil {
		return err
	}
	var state string
	if err := m.db.QueryRowContext(ctx, "SELECT state FROM `"+database+"`.shard_log WHERE id = 1").Scan(&state); err != nil {
		return err
	}
	if !(ShardHead{State: state}).Foreign() {
		return fmt.Errorf("%w: %s is %s on the master of cluster %s", ErrNotThere, database, state, cluster.Name)
	}
	return c.grant(ctx, m.db, database)
}

// ColumnRoom returns how many columns of a datastore a server would have more
// than it may, if it got those of another one too.
func ColumnRoom(ctx context.Context, from, to *sql.DB, datastore string) (over int, err error) {
	var limit int
	if err := to.QueryRowContext(ctx, "SELECT column_limit FROM cellog_meta.cluster WHERE id = 1").Scan(&limit); err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	for db, q := range map[*sql.DB]string{to: "", from: " WHERE datastore = '" + datastore + "'"} {
		rows, err := db.QueryContext(ctx, "SELECT CONCAT(datastore, '.', column_name) FROM cellog_meta.columns"+q)
		if err != nil {
			return 0, err
		}
		err = each(rows, func() error {
			var name string
			err := rows.Scan(&name)
			seen[name] = true
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return len(seen) - limit, nil
}

// AppendCopy adds cells that follow to a copy, in one transaction, as they are;
// those that it has already are left out. It returns the copy's last.
func AppendCopy(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, cells []cellog.Cell) (last cellog.AddedID, err error) {
	name := quote(datastore, shard)
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		var state string
		if err := tx.QueryRowContext(ctx, "SELECT last_added_id, state FROM "+name+".shard_log WHERE id = 1 FOR UPDATE").Scan(&last, &state); err != nil {
			return err
		}
		if !(ShardHead{State: state}).Foreign() {
			return fmt.Errorf("%w: %s is %s, not a copy", ErrNotThere, name, state)
		}
		var sb strings.Builder
		var args []any
		columns := map[string]bool{}
		var created time.Time
		for i := range cells {
			c := &cells[i]
			if c.AddedID <= last {
				continue
			}
			if c.AddedID != last+1 {
				return fmt.Errorf("shard %s: added_id %d does not follow %d: %w", name, c.AddedID, last, storage.ErrDamaged)
			}
			if len(args) > 0 {
				sb.WriteByte(',')
			}
			sb.WriteString("(?, ?, ?, ?, ?, ?, ?, ?)")
			args = append(args, int64(c.AddedID), int(c.Epoch), c.Row[:], c.Column, int64(c.Ref), c.Body, c.CreatedAt, sql.NullString{String: c.TraceParent, Valid: c.TraceParent != ""})
			columns[c.Column] = true
			last, created = c.AddedID, c.CreatedAt
		}
		if len(args) == 0 {
			return nil
		}
		for col := range columns {
			if _, err := tx.ExecContext(ctx, "INSERT IGNORE INTO cellog_meta.columns (datastore, column_name, created_at) VALUES (?, ?, UTC_TIMESTAMP(6))", datastore, col); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+name+".entity ("+cellFields+") VALUES "+sb.String(), args...); err != nil {
			return fmt.Errorf("shard %s: %w", name, err)
		}
		_, err := tx.ExecContext(ctx, "UPDATE "+name+".shard_log SET last_added_id = ?, last_created_at = GREATEST(last_created_at, ?) WHERE id = 1", int64(last), created)
		return err
	})
	return last, err
}

// CompareCopy returns ErrDiffers unless two servers have the same cells of a
// shard with after < added_id <= upTo, all of them.
func CompareCopy(ctx context.Context, from, to *sql.DB, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID) error {
	a, err := sumOf(ctx, from, datastore, shard, after, upTo)
	if err != nil {
		return err
	}
	b, err := sumOf(ctx, to, datastore, shard, after, upTo)
	if err != nil {
		return err
	}
	if a == b && a.cells == int64(upTo-after) {
		return nil
	}
	// One value may be stored as different bytes, after a cell came back from
	// Kafka: so look.
	for after < upTo {
		x, err := ReadEntity(ctx, from, datastore, shard, after, 200)
		if err != nil {
			return err
		}
		y, err := ReadEntity(ctx, to, datastore, shard, after, len(x))
		if err != nil {
			return err
		}
		if len(x) == 0 || len(y) == 0 {
			return fmt.Errorf("%w: one of them has no cell after added_id %d of shard %s", ErrDiffers, after, cellog.DatabaseName(datastore, shard))
		}
		for i := range min(len(x), len(y)) {
			if after == upTo {
				break
			}
			if x[i].AddedID != after+1 || y[i].AddedID != after+1 || x[i].Epoch != y[i].Epoch || x[i].Key != y[i].Key ||
				!x[i].CreatedAt.Equal(y[i].CreatedAt) || x[i].TraceParent != y[i].TraceParent || !sameBody(x[i].Body, y[i].Body) {
				return fmt.Errorf("%w: shard %s, added_id %d", ErrDiffers, cellog.DatabaseName(datastore, shard), after+1)
			}
			after++
		}
	}
	return nil
}

// sum is a block's count and checksum.
type sum struct {
	cells int64
	hash  string
}

// sumOf sums in SQL, so that no cell has to travel. MySQL 9.6 has no SHA1.
func sumOf(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID) (s sum, err error) {
	err = db.QueryRowContext(ctx, "SELECT COUNT(*), CAST(COALESCE(BIT_XOR(CAST(CONV(SUBSTRING(SHA2(CONCAT_WS('|', added_id, epoch, HEX(row_key), column_name, ref_key, CAST(created_at AS CHAR), "+
		"COALESCE(traceparent, ''), SHA2(body, 256)), 256), 1, 15), 16, 10) AS UNSIGNED)), 0) AS CHAR) FROM "+quote(datastore, shard)+".entity WHERE added_id > ? AND added_id <= ?",
		int64(after), int64(upTo)).Scan(&s.cells, &s.hash)
	return s, err
}

// StartMoving closes a shard that is open in an epoch, for a move to a cluster.
// Done already, it does nothing.
func StartMoving(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, epoch cellog.Epoch, to string) (last cellog.AddedID, err error) {
	name := quote(datastore, shard)
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE "+name+".shard_log SET state = ? WHERE id = 1 AND epoch = ? AND state = '"+stateOpen+"'", stateMoving+to, int(epoch)); err != nil {
			return err
		}
		last, err = lockMoving(ctx, tx, name, epoch, to)
		return err
	})
	return last, err
}

// lockMoving takes the lock of a shard that moves to a cluster.
func lockMoving(ctx context.Context, tx *sql.Tx, name string, epoch cellog.Epoch, to string) (last cellog.AddedID, err error) {
	var is ShardHead
	if err := tx.QueryRowContext(ctx, "SELECT epoch, state, last_added_id FROM "+name+".shard_log WHERE id = 1 FOR UPDATE").Scan(&is.Epoch, &is.State, &last); err != nil {
		return 0, err
	}
	if is.Epoch != epoch || is.State != stateMoving+to {
		return 0, fmt.Errorf("%w: %s is %s in epoch %d, not %s%s in epoch %d", ErrNotThere, name, is.State, is.Epoch, stateMoving, to, epoch)
	}
	return last, nil
}

// holdFor is for how long a server keeps a shard's lock for a mover that says
// nothing: one that is frozen, or whose machine is gone.
const holdFor = 60 * time.Second

// holdEvery is how often a mover says something. Only a test changes it.
var holdEvery = holdFor / 6

// WhileMoving calls f while a shard moves to a cluster, in an epoch, with the
// given last cell, and nobody can change that. f's context ends if the lock is
// lost; one that is frozen may notice that late, so what f does must be refused
// by then.
func WhileMoving(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, epoch cellog.Epoch, to string, want cellog.AddedID, f func(ctx context.Context) error) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		last, err := lockMoving(ctx, tx, quote(datastore, shard), epoch, to)
		if err == nil && last != want {
			err = fmt.Errorf("%w: its last cell is %d, not %d", ErrNotThere, last, want)
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, "SET SESSION wait_timeout = "+strconv.Itoa(int(holdFor.Seconds())))
		}
		if err != nil {
			return err
		}
		ctx, lost := context.WithCancelCause(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			t := time.NewTicker(holdEvery)
			defer t.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-t.C:
					if _, err := tx.ExecContext(ctx, "DO 0"); err != nil {
						lost(fmt.Errorf("the lock of shard %s is lost: %w", cellog.DatabaseName(datastore, shard), err))
						return
					}
				}
			}
		})
		err = f(ctx)
		if ctx.Err() != nil && err != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		lost(nil)
		wg.Wait()
		return err
	})
}

// ClaimCopy gives a copy a mover's mark, so that an earlier mover, which may be
// frozen, changes its index tables no more. was is the state in which the copy was
// seen before it was known that it is not handed over: this mover may be the
// frozen one. It returns the state in which only this one may change the tables.
func ClaimCopy(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, was ShardHead, mark string) (state string, err error) {
	if !was.Foreign() {
		return "", fmt.Errorf("%w: %s is %s, not a copy", ErrNotThere, quote(datastore, shard), was.State)
	}
	state = stateCopying + " " + mark
	if _, err := db.ExecContext(ctx, "UPDATE "+quote(datastore, shard)+".shard_log SET state = ? WHERE id = 1 AND state = ?", state, was.State); err != nil {
		return "", err
	}
	h, _, err := Head(ctx, db, datastore, shard)
	if err == nil && h.State != state {
		err = fmt.Errorf("%w: %s is %s, not a copy", ErrNotThere, quote(datastore, shard), h.State)
	}
	return state, err
}

// StopMoving opens a shard again that moves to a cluster, if ok, which is called
// while nobody can change its state, says that it was not handed over.
func StopMoving(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, epoch cellog.Epoch, to string, ok func() error) error {
	name := quote(datastore, shard)
	return inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := lockMoving(ctx, tx, name, epoch, to); err != nil {
			return err
		}
		if err := ok(); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE "+name+".shard_log SET state = '"+stateOpen+"' WHERE id = 1")
		return err
	})
}

// ConfirmArrived gives a copy that has arrived, in the state that Arrive left it
// in, another mark: nobody has begun to copy its tables anew, and one that was
// about to, and is frozen, may not any more. It is called under the lock of the
// old owner's shard, right before that one hands it over.
func ConfirmArrived(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, state, mark string) (now string, err error) {
	now = stateArriving + " " + mark
	if _, err := db.ExecContext(ctx, "UPDATE "+quote(datastore, shard)+".shard_log SET state = ? WHERE id = 1 AND state = ?", now, state); err != nil {
		return "", err
	}
	h, _, err := Head(ctx, db, datastore, shard)
	if err == nil && h.State != now {
		err = fmt.Errorf("%w: another mover goes on with %s, which is %s", ErrNotThere, quote(datastore, shard), h.Word())
	}
	return now, err
}

// Arrive says that a copy in the state that ClaimCopy gave it has all up to last,
// and is to be opened in an epoch. It returns the state in which it leaves it.
func Arrive(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, state string, epoch cellog.Epoch, last cellog.AddedID) (arriving string, err error) {
	name := quote(datastore, shard)
	arriving = stateArriving + strings.TrimPrefix(state, stateCopying)
	_, err = db.ExecContext(ctx, "UPDATE "+name+".shard_log SET state = ?, epoch = ? WHERE id = 1 AND epoch <= ? AND last_added_id = ? AND state = ?",
		arriving, int(epoch), int(epoch), int64(last), state)
	if err != nil {
		return "", err
	}
	h, _, err := Head(ctx, db, datastore, shard)
	if err == nil && !(h.State == arriving && h.Epoch == epoch && h.Last == last) {
		err = fmt.Errorf("%w: %s is %s in epoch %d with last cell %d, not a copy with all up to %d", ErrNotThere, name, h.State, h.Epoch, h.Last, last)
	}
	return arriving, err
}

// LeaveShards makes a server that is to be a master know which of its shards have
// moved to other clusters, as owner says: one that was a minion may have
// missed it, and have them open.
func LeaveShards(ctx context.Context, db *sql.DB, shards []ShardHead, owner func(ShardHead) string) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		for _, h := range shards {
			if !h.Open() && !h.Closed() {
				continue
			}
			if _, err := tx.ExecContext(ctx, "UPDATE "+quote(h.Datastore, h.Shard)+".shard_log SET state = ? WHERE id = 1", stateMoving+owner(h)); err != nil {
				return fmt.Errorf("leave shard %s: %w", cellog.DatabaseName(h.Datastore, h.Shard), err)
			}
		}
		return nil
	})
}

// OpenArrived lets workers write to a shard that has arrived, in the epoch in
// which it was taken over, and under its new cluster's term. That it is open
// already is no error.
func OpenArrived(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, epoch cellog.Epoch, term cellog.Term) error {
	name := quote(datastore, shard)
	_, err := db.ExecContext(ctx, "UPDATE "+name+".shard_log SET state = '"+stateOpen+"', term = GREATEST(term, ?) WHERE id = 1 AND epoch = ? AND state LIKE '"+stateArriving+"%'", int(term), int(epoch))
	if err != nil {
		return err
	}
	h, _, err := Head(ctx, db, datastore, shard)
	if err == nil && !(h.Open() && h.Epoch >= epoch) {
		err = fmt.Errorf("%w: %s is %s in epoch %d", ErrNotThere, name, h.State, h.Epoch)
	}
	return err
}
