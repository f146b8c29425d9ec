package mysqlreplica

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog/internal/mysqlconn"
)

// Source is a server to follow.
type Source struct {
	// Addr is its host:port, as the minion reaches it.
	Addr string
	// User and Password are an account there that has REPLICATION SLAVE. The
	// password has at most 32 characters, says MySQL.
	User, Password string
}

// Follow makes a server a minion of src, from where it stands by GTID, and
// starts replication. A server that follows already is re-pointed, which
// throws received transactions away that it has not applied. Whether it works
// is for WaitReceivingAndApplying to say.
func Follow(ctx context.Context, db *sql.DB, src Source) error {
	host, port, err := net.SplitHostPort(src.Addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("mysqlreplica: follow %q: want host:port: %w", src.Addr, err)
	}
	if n := len(src.Password); n > 32 { // the server's error would show it
		return fmt.Errorf("mysqlreplica: follow %s: the password of %s has %d characters: replication takes at most 32", src.Addr, src.User, n)
	}
	s, err := Identity(ctx, db)
	if err != nil {
		return err
	}
	if err := Stop(ctx, db); err != nil {
		return err
	}
	// The heartbeat also makes a master notice minions that are gone: without
	// it MySQL 9.7 takes 9 s to shut down, with it 2.5 s (measured).
	change, start := "CHANGE REPLICATION SOURCE TO SOURCE_HOST="+text(host)+", SOURCE_PORT="+port+
		", SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1, SOURCE_HEARTBEAT_PERIOD=1, SOURCE_RETRY_COUNT=1000000", "START REPLICA"
	login := ", SOURCE_USER=" + text(src.User) + ", SOURCE_PASSWORD=" + text(src.Password)
	if s.MariaDB {
		if err := continueOwnWrites(ctx, db); err != nil {
			return err
		}
		change, start = "CHANGE MASTER TO MASTER_HOST="+text(host)+", MASTER_PORT="+port+", MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1", "START SLAVE"
		login = ", MASTER_USER=" + text(src.User) + ", MASTER_PASSWORD=" + text(src.Password)
	}
	if _, err := db.ExecContext(ctx, change+login); err != nil {
		return fmt.Errorf("mysqlreplica: %s: %w", change, err) // never the password
	}
	return exec(ctx, db, start)
}

// continueOwnWrites makes a MariaDB server that was a master ask for what
// follows its own last transaction. It would otherwise ask for what follows the
// last one that it got as a minion.
func continueOwnWrites(ctx context.Context, db *sql.DB) error {
	var own, got string
	if err := db.QueryRowContext(ctx, "SELECT @@global.gtid_current_pos, @@global.gtid_slave_pos").Scan(&own, &got); err != nil {
		return fmt.Errorf("mysqlreplica: gtid positions: %w", err)
	}
	if own == got {
		return nil
	}
	return exec(ctx, db, "SET GLOBAL gtid_slave_pos = "+text(own))
}

// StopReceiving stops the thread that fetches from the source; what was
// fetched is still applied, see WaitApplied. It is safe twice.
func StopReceiving(ctx context.Context, db *sql.DB) error {
	return stop(ctx, db, " IO_THREAD")
}

// StartApplying starts the thread that applies what was received, if it does
// not run. It is safe twice, and on a server that follows none.
func StartApplying(ctx context.Context, db *sql.DB) error {
	st, err := Status(ctx, db)
	if err != nil || !st.Configured || st.Applying {
		return err
	}
	s, err := Identity(ctx, db)
	if err != nil {
		return err
	}
	if s.MariaDB {
		return exec(ctx, db, "START SLAVE SQL_THREAD")
	}
	return exec(ctx, db, "START REPLICA SQL_THREAD")
}

// Stop stops both threads. It is safe twice, and on a server that follows
// none. MariaDB throws away what was received and not applied when both start
// again, MySQL when the server restarts.
func Stop(ctx context.Context, db *sql.DB) error {
	if err := StopReceiving(ctx, db); err != nil {
		return err
	}
	if err := giveUpHalf(ctx, db); err != nil {
		return err
	}
	return stop(ctx, db, "")
}

// giveUpHalf ends the thread of a MySQL server that applies a transaction of
// which the rest will never come: its source died, or was cut off, while it sent
// it. STOP REPLICA would wait for the rest for a minute (measured with 9.7; in its
// source SLAVE_WAIT_GROUP_DONE). Nothing is lost: the half is rolled back, and what
// was received whole has been applied.
func giveUpHalf(ctx context.Context, db *sql.DB) error {
	st, err := Status(ctx, db)
	if err != nil || !st.Applying {
		return err
	}
	if s, err := Identity(ctx, db); err != nil || s.MariaDB {
		return err
	}
	var half bool
	err = db.QueryRowContext(ctx, "SELECT GTID_SUBSET("+text(st.Received)+", @@global.gtid_executed) AND "+
		"EXISTS (SELECT * FROM performance_schema.replication_applier_status_by_coordinator WHERE PROCESSING_TRANSACTION <> '')").Scan(&half)
	if err != nil {
		return fmt.Errorf("mysqlreplica: what is being applied: %w", err)
	}
	if !half {
		return nil
	}
	// Not by its THREAD_ID: that is NULL where the performance schema is off.
	all, err := allRows(ctx, db, "SHOW PROCESSLIST")
	if err != nil {
		return err
	}
	for _, p := range all {
		if p["User"] != "system user" || !strings.Contains(p["State"], "has read all relay log") {
			continue
		}
		if err := exec(ctx, db, "KILL "+p["Id"]); err != nil && !isNoThread(err) {
			return err
		}
		half = false
	}
	if half {
		return nil // it is on its way to the next one
	}
	// A STOP that came before it has noticed would make it wait.
	for st.Applying {
		time.Sleep(poll)
		if st, err = Status(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

// isNoThread says that what was to be killed is gone.
func isNoThread(err error) bool { return mysqlconn.Code(err) == 1094 }

func stop(ctx context.Context, db *sql.DB, thread string) error {
	s, err := Identity(ctx, db)
	if err != nil {
		return err
	}
	if s.MariaDB {
		return exec(ctx, db, "STOP SLAVE"+thread)
	}
	return exec(ctx, db, "STOP REPLICA"+thread)
}

// Forget stops replication and removes all of its settings: the server follows
// none, also after a restart. Which transactions it has stays known.
func Forget(ctx context.Context, db *sql.DB) error {
	s, err := Identity(ctx, db)
	if err != nil {
		return err
	}
	if err := Stop(ctx, db); err != nil {
		return err
	}
	if s.MariaDB {
		return exec(ctx, db, "RESET SLAVE ALL")
	}
	return exec(ctx, db, "RESET REPLICA ALL")
}

// GTIDs returns the transactions that a server has committed, its own and
// those it got, in its flavour's text.
func GTIDs(ctx context.Context, db *sql.DB) (string, error) {
	s, err := Identity(ctx, db)
	if err != nil {
		return "", err
	}
	q := "SELECT @@global.gtid_executed"
	if s.MariaDB {
		q = "SELECT @@global.gtid_current_pos"
	}
	var v string
	if err := db.QueryRowContext(ctx, q).Scan(&v); err != nil {
		return "", fmt.Errorf("mysqlreplica: %s: %w", q, err)
	}
	return strings.ReplaceAll(v, "\n", ""), nil
}

// Has says whether a server has all transactions that GTIDs of another one
// named.
func Has(ctx context.Context, db *sql.DB, gtids string) (bool, error) {
	s, err := Identity(ctx, db)
	if err != nil {
		return false, err
	}
	if s.MariaDB {
		const q = "SELECT CONCAT(@@global.gtid_binlog_state, ',', @@global.gtid_slave_pos)"
		var state string
		if err := db.QueryRowContext(ctx, q).Scan(&state); err != nil {
			return false, fmt.Errorf("mysqlreplica: %s: %w", q, err)
		}
		return covers(state, gtids), nil
	}
	q := "SELECT GTID_SUBSET(" + text(gtids) + ", @@global.gtid_executed)"
	var has sql.NullBool
	if err := db.QueryRowContext(ctx, q).Scan(&has); err != nil {
		return false, fmt.Errorf("mysqlreplica: %s: %w", q, err)
	}
	return has.Bool, nil
}

// covers says whether a MariaDB server's state, the last transaction of every
// domain and server that it has seen, reaches each of gtids.
func covers(state, gtids string) bool {
	last := map[string]uint64{}
	for _, g := range strings.Split(state, ",") {
		if of, n, ok := cutGTID(g); ok {
			last[of] = max(last[of], n)
		}
	}
	for _, g := range strings.Split(gtids, ",") {
		if of, n, ok := cutGTID(g); ok && last[of] < n {
			return false
		}
	}
	return true
}

// cutGTID parts domain-server from the sequence number.
func cutGTID(g string) (of string, n uint64, ok bool) {
	g = strings.TrimSpace(g)
	i := strings.LastIndexByte(g, '-')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(g[i+1:], 10, 64)
	return g[:i], n, err == nil
}
