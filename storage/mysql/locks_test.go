package mysql

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// A claim that is being written holds up whatever is decided by the terms of
// that server: a copy on the holder, a cell on its primary. So no copy goes in
// between a claim and its claimant's look at what there is.
func TestClaimInFlightIsWaitedFor(t *testing.T) {
	for _, tc := range []struct {
		name    string
		on      int    // the node where the claim is written
		cluster string // whose
		is      error
	}{
		{"on the holder, of the cell's cluster", 1, "c0", errNewTerm},
		{"on the primary, of the holder's cluster", 0, "c1", storage.ErrOutcomeUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := []*mysqltest.Node{mysqltest.Start(t), mysqltest.Start(t)}
			st := newCopying(t, nodes...)
			on := nodes[tc.on]
			tx, err := on.DB(t, "").BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }() // after the commit it does nothing
			if _, err := tx.ExecContext(t.Context(), "UPDATE cellog_meta.terms SET term = 2, state = 'claimed' WHERE cluster = ?", tc.cluster); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, errs := st.Write(ctx, st.ds, 0, somePuts(t, 1))
				done <- errs[0]
			}()
			until(t, "the write waits for the claim", func() bool {
				select {
				case err := <-done:
					t.Fatalf("answered while a claim was being written: %v", err)
				case <-time.After(150 * time.Millisecond): // polled faster, innodb_trx never renews itself
				}
				return on.Query(t, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") != "0"
			})
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if tc.on == 0 {
				until(t, "the cell is on the primary", func() bool {
					return nodes[0].Query(t, "SELECT COUNT(*) FROM "+quote(st.ds, 0)+".entity") == "1"
				})
				cancel() // it waits to be final now
			}
			if err := <-done; !errors.Is(err, tc.is) {
				t.Errorf("after the claim: %v", err)
			}
			if got := copiesOn(t, nodes[1], "buffered_cells", st.ds); got != "0" {
				t.Errorf("%s copies", got)
			}
		})
	}
}
