package mysql

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqltest"
)

// A mover that was frozen finds the copy another one's, though that one has come
// to the same state; and a mover whose lock is lost stops.
func TestCopyIsOneMovers(t *testing.T) {
	st := newOpenStore(t, 1, nil, mysqltest.Start(t))
	ctx, db := t.Context(), st.db
	head := func() ShardHead {
		t.Helper()
		h, ok, err := Head(ctx, db, st.ds, 0)
		if err != nil || !ok {
			t.Fatal(h, ok, err)
		}
		return h
	}
	if _, err := ClaimCopy(ctx, db, st.ds, 0, head(), "a"); !errors.Is(err, ErrNotThere) {
		t.Errorf("an open shard: %v", err)
	}
	if _, err := db.ExecContext(ctx, "UPDATE "+quote(st.ds, 0)+".shard_log SET state = 'copying' WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	a, err := ClaimCopy(ctx, db, st.ds, 0, head(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Arrive(ctx, db, st.ds, 0, a, 2, 0); err != nil {
		t.Fatal(err)
	}
	frozen := head() // arriving
	b, err := ClaimCopy(ctx, db, st.ds, 0, frozen, "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Arrive(ctx, db, st.ds, 0, b, 2, 0); err != nil {
		t.Fatal(err)
	}
	seen := head() // by one that freezes before the shard is handed over
	if _, err := ConfirmArrived(ctx, db, st.ds, 0, frozen.State, "d"); !errors.Is(err, ErrNotThere) {
		t.Errorf("the tables were copied anew: %v", err)
	}
	if _, err := ConfirmArrived(ctx, db, st.ds, 0, seen.State, "d"); err != nil {
		t.Error(err)
	}
	if _, err := ClaimCopy(ctx, db, st.ds, 0, seen, "c"); !errors.Is(err, ErrNotThere) {
		t.Errorf("it is handed over: %v", err)
	}
	now := head()
	if _, err := ClaimCopy(ctx, db, st.ds, 0, frozen, "c"); !errors.Is(err, ErrNotThere) || head() != now {
		t.Errorf("thawed: %v, %+v", err, head())
	}
	if _, err := Arrive(ctx, db, st.ds, 0, a, 2, 0); !errors.Is(err, ErrNotThere) {
		t.Errorf("thawed: %v", err)
	}
	if !now.Arriving() || now.Word() != "arriving" {
		t.Errorf("%+v", now)
	}
	if err := OpenArrived(ctx, db, st.ds, 0, 2, 1); err != nil || !head().Open() {
		t.Errorf("%v, %+v", err, head())
	}

	every := holdEvery
	holdEvery = 50 * time.Millisecond
	defer func() { holdEvery = every }()
	// Its lock is lost while it is at work: what it does ends.
	if _, err := StartMoving(ctx, db, st.ds, 0, 2, "c1"); err != nil {
		t.Fatal(err)
	}
	err = WhileMoving(ctx, db, st.ds, 0, 2, "c1", 0, func(ctx context.Context) error {
		var id int64
		// The transaction that waits for nobody: its server ends it.
		if err := st.db.QueryRowContext(ctx, "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_rows_locked > 0 LIMIT 1").Scan(&id); err != nil {
			return err
		}
		if _, err := st.db.ExecContext(ctx, "KILL "+strconv.FormatInt(id, 10)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Second):
			return errors.New("it was not told")
		}
	})
	if err == nil || err.Error() == "it was not told" {
		t.Errorf("the lock was lost: %v", err)
	}
	t.Log(err)
}
