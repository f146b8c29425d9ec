package mysqlreplica

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// poll is how often a state is asked for that no server can be waited on.
const poll = 20 * time.Millisecond

// WaitApplied returns when a minion has applied all that it had received when
// this was called: call StopReceiving before. ErrStopped says that it does not
// apply. A server that follows none has nothing to wait for.
func WaitApplied(ctx context.Context, db *sql.DB) error {
	st, err := Status(ctx, db)
	if err != nil || st.Received == "" {
		return err
	}
	return waitForGTIDs(ctx, db, st.Received, true)
}

// WaitForGTIDs returns when a minion has applied the transactions that GTIDs
// of another server named. ErrStopped says that it does not apply any, or has
// applied all that it got and gave up receiving, ErrDiverged that it never will.
func WaitForGTIDs(ctx context.Context, db *sql.DB, gtids string) error {
	return waitForGTIDs(ctx, db, gtids, false)
}

// waitForGTIDs: received says that the transactions have been received.
func waitForGTIDs(ctx context.Context, db *sql.DB, gtids string, received bool) error {
	s, err := Identity(ctx, db)
	if err != nil {
		return err
	}
	q := "SELECT WAIT_FOR_EXECUTED_GTID_SET(" + text(gtids) + ", 1)"
	if s.MariaDB {
		q = "SELECT MASTER_GTID_WAIT(" + text(gtids) + ", 1)"
	}
	var st State
	for {
		var late sql.NullInt64
		err := db.QueryRowContext(ctx, q).Scan(&late)
		if err == nil && late.Valid && late.Int64 == 0 {
			return nil
		}
		if err == nil {
			st, err = Status(ctx, db)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("mysqlreplica: wait for %s to be applied: %w; last state: %+v", gtids, ctx.Err(), st)
		case err != nil:
			return fmt.Errorf("mysqlreplica: wait for %s to be applied: %w", gtids, err)
		case !st.Applying:
			return fmt.Errorf("%s is not applied: %w", gtids, st.stopped())
		case !received && st.receiverGone && st.ReceiveError != "":
			// What it has may be all that is wanted.
			if err := WaitApplied(ctx, db); err != nil {
				return err
			}
			if err := db.QueryRowContext(ctx, q).Scan(&late); err != nil || late.Int64 != 0 {
				return fmt.Errorf("%s is not received: %w", gtids, st.stopped())
			}
			return nil
		}
	}
}

// WaitReceivingAndApplying returns when a minion is connected to its source and
// applies what it gets, or ErrStopped when a thread gave up; a source that
// cannot be reached is waited for until ctx ends.
func WaitReceivingAndApplying(ctx context.Context, db *sql.DB) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var last State
	for {
		st, err := Status(ctx, db)
		if err == nil {
			last = st
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("mysqlreplica: wait for replication: %w; last state: %+v", ctx.Err(), last)
		case err != nil:
			return err
		case !st.Configured:
			return fmt.Errorf("%w: the server follows none", ErrStopped)
		case st.Receiving && st.Applying:
			return nil
		case !st.Applying && st.ApplyError != "", st.receiverGone && st.ReceiveError != "":
			return st.stopped()
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
