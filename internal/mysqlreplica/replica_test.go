package mysqlreplica_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// within is a context for what should take much less.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, db *sql.DB) mysqlreplica.State {
	t.Helper()
	st, err := mysqlreplica.Status(context.Background(), db)
	must(t, err)
	return st
}

// source is how a node is followed.
func source(n *mysqltest.Node) mysqlreplica.Source {
	return mysqlreplica.Source{Addr: n.Addr(), User: mysqltest.Accounts.Replica.User, Password: mysqltest.Accounts.Replica.Password}
}

func waitFor(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestIdentityAndReadOnly(t *testing.T) {
	ctx := within(t)
	n := mysqltest.Start(t)
	db := n.DB(t, "")
	s, err := mysqlreplica.Identity(ctx, db)
	must(t, err)
	if s.ReadOnly || s.ID == "" || s.MariaDB != strings.HasPrefix(s.ID, "mariadb-server-id-") || !strings.Contains(s.Version, ".") {
		t.Errorf("%+v", s)
	}
	for _, readOnly := range []bool{true, true, false, false} {
		must(t, mysqlreplica.SetReadOnly(ctx, db, readOnly))
		again, err := mysqlreplica.Identity(ctx, db)
		must(t, err)
		if again.ReadOnly != readOnly || again.ID != s.ID {
			t.Errorf("%+v, want read_only %v", again, readOnly)
		}
		if !s.MariaDB && n.Query(t, "SELECT @@global.super_read_only") != n.Query(t, "SELECT @@global.read_only") {
			t.Error("super_read_only is not read_only")
		}
	}
	for _, f := range []func(context.Context, *sql.DB) error{mysqlreplica.StopReceiving, mysqlreplica.WaitApplied, mysqlreplica.Stop, mysqlreplica.Forget} {
		must(t, f(ctx, db)) // on a server that follows none
	}
	if err := mysqlreplica.WaitReceivingAndApplying(ctx, db); !errors.Is(err, mysqlreplica.ErrStopped) {
		t.Errorf("%v, want ErrStopped", err)
	}
}

// A candidate's relay log must be applied before it is thrown away.
func TestACandidateAppliesAllItReceived(t *testing.T) {
	ctx := within(t)
	c := mysqltest.Cluster(t, 1)
	minion := c.Minions[0].DB(t, "")
	c.Master.Exec(t, "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY, b LONGBLOB)")
	c.Sync(t)
	if st := status(t, minion); !st.Configured || !st.Receiving || !st.Applying || st.Source != c.Master.Addr() || st.Received == "" || st.Applied == "" || !st.LagKnown {
		t.Errorf("%+v", st)
	}

	lock, err := minion.Conn(ctx) // holds the applier up
	must(t, err)
	defer lock.Close()
	_, err = lock.ExecContext(ctx, "LOCK TABLES d.t READ")
	must(t, err)
	c.Master.Exec(t, "INSERT INTO d.t VALUES (1, REPEAT('x', 1000000))")
	c.Master.Exec(t, "INSERT INTO d.t VALUES (2, 'y')")
	all, err := mysqlreplica.GTIDs(ctx, c.Master.DB(t, ""))
	must(t, err)
	waitFor(t, func() error {
		st := status(t, minion)
		if received := st.Received; received == "" || !strings.HasSuffix(all, last(received)) {
			return fmt.Errorf("%+v, want %s received", st, all)
		}
		return nil
	})
	for range 2 {
		must(t, mysqlreplica.StopReceiving(ctx, minion))
	}
	c.Master.Exec(t, "INSERT INTO d.t VALUES (3, 'never comes')")
	if st := status(t, minion); st.Receiving || !st.Applying {
		t.Errorf("%+v", st)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := mysqlreplica.WaitApplied(short, minion); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the applier held up: %v", err)
	}
	_, err = lock.ExecContext(ctx, "UNLOCK TABLES")
	must(t, err)
	must(t, mysqlreplica.WaitApplied(ctx, minion))
	if got := c.Minions[0].Query(t, "SELECT COUNT(*) FROM d.t"); got != "2" {
		t.Errorf("%s rows, want the 2 that were received", got)
	}

	must(t, mysqlreplica.Stop(ctx, minion))
	must(t, mysqlreplica.WaitApplied(ctx, minion)) // nothing is missing: it may be stopped
	must(t, mysqlreplica.Forget(ctx, minion))
	if st := status(t, minion); st.Configured {
		t.Errorf("%+v", st)
	}
	must(t, mysqlreplica.Follow(ctx, minion, source(c.Master)))
	must(t, mysqlreplica.WaitReceivingAndApplying(ctx, minion))
	c.Sync(t)
	if got := c.Minions[0].Query(t, "SELECT COUNT(*) FROM d.t"); got != "3" {
		t.Errorf("%s rows, want 3", got)
	}
}

// last returns the last number of a set of transactions.
func last(gtids string) string { return gtids[strings.LastIndexAny(gtids, "-:")+1:] }

// The minion becomes the master, and the old master, which has lost nothing
// and has nothing of its own, its minion.
func TestRolesMayBeSwapped(t *testing.T) {
	ctx := within(t)
	c := mysqltest.Cluster(t, 2)
	c.Master.Exec(t, "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY)")
	c.Master.Exec(t, "INSERT INTO d.t VALUES (1)")
	c.Sync(t)
	old := c.Master
	must(t, mysqlreplica.SetReadOnly(ctx, old.DB(t, ""), true))
	c.Master = c.Minions[0]
	c.Minions = []*mysqltest.Node{old, c.Minions[1]}
	must(t, mysqlreplica.Forget(ctx, c.Master.DB(t, "")))
	must(t, mysqlreplica.SetReadOnly(ctx, c.Master.DB(t, ""), false))
	c.Master.Exec(t, "INSERT INTO d.t VALUES (2)")
	for _, m := range c.Minions {
		must(t, mysqlreplica.Follow(ctx, m.DB(t, ""), source(c.Master)))
		must(t, mysqlreplica.WaitReceivingAndApplying(ctx, m.DB(t, "")))
	}
	c.Master.Exec(t, "INSERT INTO d.t VALUES (3)")
	c.Sync(t)
	for _, m := range c.Minions {
		if got := m.Query(t, "SELECT COUNT(*) FROM d.t"); got != "3" {
			t.Errorf("%s rows, want 3", got)
		}
	}
}

func TestADivergedServerDoesNotFollow(t *testing.T) {
	ctx := within(t)
	c := mysqltest.Cluster(t, 1)
	minion := c.Minions[0].DB(t, "")
	c.Master.Exec(t, "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY)")
	c.Sync(t)
	must(t, mysqlreplica.Forget(ctx, minion))
	must(t, mysqlreplica.SetReadOnly(ctx, minion, false))
	c.Minions[0].Exec(t, "INSERT INTO d.t VALUES (7)")
	must(t, mysqlreplica.SetReadOnly(ctx, minion, true))
	c.Master.Exec(t, "INSERT INTO d.t VALUES (7)")
	c.Master.Exec(t, "INSERT INTO d.t VALUES (8)")
	gtids, err := mysqlreplica.GTIDs(ctx, c.Master.DB(t, ""))
	must(t, err)
	must(t, mysqlreplica.Follow(ctx, minion, source(c.Master)))
	// One that both threads run for a moment is seen by the second wait.
	err = mysqlreplica.WaitReceivingAndApplying(ctx, minion)
	if err == nil {
		err = mysqlreplica.WaitForGTIDs(ctx, minion, gtids)
	}
	if !errors.Is(err, mysqlreplica.ErrStopped) {
		t.Fatalf("%v, want ErrStopped", err)
	}
	t.Log(err)
	if err = mysqlreplica.WaitReceivingAndApplying(ctx, minion); !errors.Is(err, mysqlreplica.ErrDiverged) {
		t.Errorf("%v, want ErrDiverged", err)
	}
	if strings.Contains(err.Error(), mysqltest.Accounts.Replica.Password) {
		t.Error("the error shows the password")
	}
}

func TestAFollowThatIsRefusedShowsNoPassword(t *testing.T) {
	n := mysqltest.Start(t)
	db := n.DB(t, "")
	for _, src := range []mysqlreplica.Source{
		{Addr: "h:3306", User: "u", Password: strings.Repeat("s3cret", 6)},
		{Addr: "nowhere", User: "u", Password: "s3cret"},
		{Addr: "h:http", User: "u", Password: "s3cret"},
	} {
		err := mysqlreplica.Follow(within(t), db, src)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v", err)
		}
		t.Log(err)
	}
}
