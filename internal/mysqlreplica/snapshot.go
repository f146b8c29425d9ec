package mysqlreplica

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cellog/cellog/internal/mysqlconn"
)

// lockWait bounds how long a server's writes may wait for the moment in which
// a snapshot begins, and that moment too.
const lockWait = 5 * time.Second

// table names a table.
type table struct{ database, name string }

func (t table) String() string { return name(t.database) + "." + name(t.name) }

// cluster is the table by which a server says that it belongs to a cluster.
var cluster = table{"cellog_meta", "cluster"}

// snapshot is one moment of a server, seen by several sessions.
type snapshot struct {
	sessions []*sql.Conn
	gtids    string // what had happened
	tables   []table
}

// close ends the sessions' transactions; twice is fine.
func (s *snapshot) close() {
	for _, c := range s.sessions {
		_, _ = c.ExecContext(context.Background(), "ROLLBACK") // else the pool's end does it
		_ = c.Close()
	}
	s.sessions = nil
}

func (r *rebuild) snapshot(ctx context.Context) (_ *snapshot, err error) {
	s := &snapshot{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for range r.cfg.Parallel {
		c, err := r.from.Conn(ctx)
		if err != nil {
			return nil, fmt.Errorf("mysqlreplica: snapshot: %w", err)
		}
		s.sessions = append(s.sessions, c)
		if err := exec(ctx, c, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
			return nil, err
		}
	}
	if s.tables, err = r.tables(ctx); err != nil {
		return nil, err
	}
	if err := r.begin(ctx, s); err != nil {
		return nil, err
	}
	// A list of tables is no part of a snapshot.
	after, err := r.tables(ctx)
	if err == nil && !slices.Equal(s.tables, after) {
		err = fmt.Errorf("%w: tables were made or dropped at %s just now: wait until that is done, and repeat", ErrBusy, r.cfg.From.Addr)
	}
	return s, err
}

// begin begins the sessions' transactions while nothing can commit.
func (r *rebuild) begin(ctx context.Context, s *snapshot) (err error) {
	lock, err := r.from.Conn(ctx)
	if err != nil {
		return fmt.Errorf("mysqlreplica: snapshot: %w", err)
	}
	defer lock.Close()
	own, err := oneRow(ctx, lock, "SELECT CONNECTION_ID() AS Id")
	if err != nil {
		return err
	}
	// If this process freezes, the server ends the session and its lock.
	seconds := strconv.Itoa(int(lockWait.Seconds()))
	if err := exec(ctx, lock, "SET SESSION lock_wait_timeout = "+seconds+", wait_timeout = "+seconds); err != nil {
		return err
	}
	lctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	defer func() {
		if err == nil {
			return
		}
		// A session that was given up waits on, and writes wait behind it.
		kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
		defer cancel()
		_ = exec(kctx, s.sessions[0], "KILL "+own["Id"]) // most often it is gone
		if mysqlconn.IsLockTimeout(err) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %s could not be locked within %v: wait until its long statements end (SHOW PROCESSLIST), or copy from another node: %w",
				ErrBusy, r.cfg.From.Addr, lockWait, err)
		}
	}()
	if err := exec(lctx, lock, "FLUSH TABLES WITH READ LOCK"); err != nil {
		return err
	}
	for _, c := range s.sessions {
		if err := exec(lctx, c, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
			return err
		}
	}
	q := "SELECT @@global.gtid_executed AS gtids"
	if r.mariaDB {
		q = "SELECT @@global.gtid_current_pos AS gtids"
	}
	row, err := oneRow(lctx, lock, q)
	if err != nil {
		return err
	}
	s.gtids = row["gtids"]
	return exec(lctx, lock, "UNLOCK TABLES")
}

// tables lists the tables of cellog's databases, and the databases that have
// none.
func (r *rebuild) tables(ctx context.Context) ([]table, error) {
	rows, err := allRows(ctx, r.from, "SELECT s.schema_name AS db, t.table_name AS name, t.engine AS engine FROM information_schema.schemata s"+
		" LEFT JOIN information_schema.tables t ON t.table_schema = s.schema_name ORDER BY 1, 2")
	if err != nil {
		return nil, err
	}
	var out []table
	for _, row := range rows {
		if !isOurs(row["db"]) {
			continue
		}
		if row["name"] != "" && row["engine"] != "InnoDB" {
			return nil, fmt.Errorf("%w: %s.%s is no InnoDB table, and no part of a snapshot: drop it at %s", ErrRefused, row["db"], row["name"], r.cfg.From.Addr)
		}
		out = append(out, table{row["db"], row["name"]})
	}
	return out, nil
}
