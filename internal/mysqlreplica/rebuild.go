package mysqlreplica

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// RebuildConfig says what Rebuild copies. Its Session settings and pool sizes
// are Rebuild's own business.
type RebuildConfig struct {
	// From is the server to copy, with an account of all privileges: the master
	// or, to spare it, a minion. Required.
	From mysqlconn.Config
	// To is the server to fill, with an account of all privileges. It must be
	// read-only. Required.
	To mysqlconn.Config
	// Source is how To follows From afterwards. Its Addr may be empty: From's.
	Source Source
	// Parallel is how many databases are copied at the same time. 0 means 4.
	Parallel int
	// FollowWithin is how long To is given in the end to connect to its source and
	// apply; then Rebuild fails, though all is there. 0 means 30 s.
	FollowWithin time.Duration
	// Confirm, if set, is asked right before the first thing of To is dropped.
	// Its error ends the Rebuild, and nothing was changed.
	Confirm func(context.Context) error
	// Complete, if set, is called when all is copied but what makes To a node of
	// the cluster: what it does is done for every node that was rebuilt, whenever
	// a Rebuild was cut off. What it writes on To must not be in its binlog. Its
	// error ends the Rebuild, which is then to be repeated.
	Complete func(context.Context) error
	// Progress, if set, is told after each batch, one call at a time.
	Progress func(Progress)
}

// Progress is how far a Rebuild is.
type Progress struct {
	Tables, TablesDone int
	Rows, Bytes        int64
}

// Rebuild makes one server an exact logical copy of another one, and its
// minion. All that cellog keeps there is dropped first; accounts and other
// databases stay as they are. Nothing of it is in To's binlog, which begins
// anew, and To has From's transactions and no others.
//
// From may be the live master: it is locked (FLUSH TABLES WITH READ LOCK) for
// the milliseconds in which the snapshots begin. While the lock is waited for,
// 5 s at most, new writes wait too. The snapshot then lives as long as the
// copying: on a master that takes many writes, InnoDB's undo log grows
// meanwhile. Tables must not be made, changed or dropped during that time.
//
// An interrupted Rebuild is repeated and begins anew. Until it has come to its
// end, To is read-only, follows none and has no cellog_meta.cluster, which is
// dropped first and copied last: so nobody takes it for a node of the cluster.
//
// It is as fast as a server inserts: 63,000 rows of 412 bytes a second (26 MB/s)
// on MariaDB 10.11 and 53,000 (22 MB/s) on MySQL 9.7, both servers on 2 busy
// cores (BenchmarkRebuild). For hundreds of gigabytes use what copies files:
// MySQL's clone plugin (CLONE INSTANCE FROM), or mariadb-backup; then Follow.
func Rebuild(ctx context.Context, cfg RebuildConfig) (err error) {
	if cfg.Parallel == 0 {
		cfg.Parallel = 4
	}
	if cfg.FollowWithin == 0 {
		cfg.FollowWithin = 30 * time.Second
	}
	if cfg.Source.Addr == "" {
		cfg.Source.Addr = cfg.From.Addr
	}
	r := &rebuild{cfg: cfg}
	if r.from, err = open(cfg.From, cfg.Parallel+1, map[string]string{
		// A reader waits for its writer, or for the other readers at the end.
		"net_write_timeout": "3600", "wait_timeout": "86400",
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(r.from)) }()
	if r.to, err = open(cfg.To, cfg.Parallel+1, map[string]string{
		"sql_log_bin": "0", "lock_wait_timeout": "30",
		// Values come as they are: a 0 is no wish for the next number.
		"sql_mode": "'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO'",
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(r.to)) }()
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("rebuild %s from %s: %w", cfg.To.Addr, cfg.From.Addr, err)
	}
	return nil
}

func open(cfg mysqlconn.Config, max int, session map[string]string) (*sql.DB, error) {
	cfg.Session = maps.Clone(session)
	cfg.Session["time_zone"] = "'+00:00'" // for TIMESTAMPs
	cfg.Database, cfg.MultiStatements, cfg.KeepReadOnly, cfg.MaxOpen = "", false, true, max
	return mysqlconn.Open(cfg)
}

// rebuild is one run of Rebuild.
type rebuild struct {
	cfg      RebuildConfig
	from, to *sql.DB
	mariaDB  bool

	mu       sync.Mutex // guards progress, and Progress is called under it
	progress Progress
}

func (r *rebuild) run(ctx context.Context) error {
	if err := r.check(ctx); err != nil {
		return err
	}
	snap, err := r.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.close()
	if r.cfg.Confirm != nil {
		if err := r.cfg.Confirm(ctx); err != nil {
			return err
		}
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	if err := r.copyAll(ctx, snap); err != nil {
		return err
	}
	if err := r.setGTIDs(ctx, snap.gtids); err != nil {
		return err
	}
	if r.cfg.Complete != nil {
		if err := r.cfg.Complete(ctx); err != nil {
			return err
		}
	}
	// From here on it is a node of the cluster, if an old one.
	if err := r.copyTable(ctx, snap.sessions[0], r.to, cluster); err != nil {
		return err
	}
	snap.close()
	if err := SetReadOnly(ctx, r.to, true); err != nil { // MySQL's super_read_only
		return err
	}
	if err := Follow(ctx, r.to, r.cfg.Source); err != nil {
		return err
	}
	// All is there: one that cannot reach its source is no reason to wait for ever.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.FollowWithin)
	defer cancel()
	return WaitReceivingAndApplying(ctx, r.to)
}

// check looks whether the one server may be copied onto the other.
func (r *rebuild) check(ctx context.Context) error {
	from, err := Identity(ctx, r.from)
	if err != nil {
		return fmt.Errorf("%s: %w", r.cfg.From.Addr, err)
	}
	to, err := Identity(ctx, r.to)
	if err != nil {
		return fmt.Errorf("%s: %w", r.cfg.To.Addr, err)
	}
	st, err := Status(ctx, r.from)
	if err != nil {
		return fmt.Errorf("%s: %w", r.cfg.From.Addr, err)
	}
	switch {
	case from.MariaDB != to.MariaDB:
		return fmt.Errorf("%w: one is MariaDB, the other MySQL", ErrRefused)
	case from.ID == to.ID:
		return fmt.Errorf("%w: both are the server %s (or have the same server_id)", ErrRefused, to.ID)
	case !to.ReadOnly:
		return fmt.Errorf("%w: %s takes writes, so it may be the master: SET GLOBAL read_only = ON there if it is not", ErrRefused, r.cfg.To.Addr)
	case st.Configured && st.Source == r.cfg.To.Addr:
		return fmt.Errorf("%w: %s replicates from %s: copy from another node, or re-point it first", ErrRefused, r.cfg.From.Addr, r.cfg.To.Addr)
	}
	var name string
	if err := r.from.QueryRowContext(ctx, "SELECT name FROM cellog_meta.cluster WHERE id = 1").Scan(&name); err != nil {
		return fmt.Errorf("%w: %s is no whole node of a cluster (cellog_meta.cluster): %w", ErrRefused, r.cfg.From.Addr, err)
	}
	r.mariaDB = from.MariaDB
	return nil
}

// clear ends the server's life as a node and drops what cellog keeps there.
func (r *rebuild) clear(ctx context.Context) error {
	if err := Forget(ctx, r.to); err != nil {
		return err
	}
	if !r.mariaDB {
		// read_only stays on: it holds ordinary accounts off.
		if err := exec(ctx, r.to, "SET GLOBAL super_read_only = OFF"); err != nil {
			return err
		}
	}
	// Sessions may have open transactions, whose locks outlive a frozen worker.
	if err := r.endSessions(ctx, func(command string) bool { return command != "Daemon" }); err != nil {
		return err
	}
	dbs, err := databases(ctx, r.to)
	if err != nil {
		return err
	}
	for _, db := range dbs {
		if db == cluster.database {
			if err := exec(ctx, r.to, "DROP TABLE IF EXISTS "+cluster.String()); err != nil {
				return err
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.cfg.Parallel)
	for _, db := range dbs {
		g.Go(func() error { return exec(ctx, r.to, "DROP DATABASE "+name(db)) })
	}
	return g.Wait()
}

// endSessions ends those sessions on To, other than the pool's only one, whose
// command is chosen.
func (r *rebuild) endSessions(ctx context.Context, chosen func(command string) bool) error {
	c, err := r.to.Conn(ctx)
	if err != nil {
		return fmt.Errorf("mysqlreplica: end sessions: %w", err)
	}
	defer c.Close()
	own, err := oneRow(ctx, c, "SELECT CONNECTION_ID() AS Id")
	if err != nil {
		return err
	}
	all, err := allRows(ctx, c, "SHOW PROCESSLIST")
	if err != nil {
		return err
	}
	for _, p := range all {
		if p["Id"] == own["Id"] || p["User"] == "system user" || !chosen(p["Command"]) {
			continue
		}
		if err := exec(ctx, c, "KILL "+p["Id"]); err != nil && mysqlconn.Code(err) != 1094 { // it ended by itself
			return err
		}
	}
	return nil
}

// setGTIDs makes the server one that has these transactions and no others.
func (r *rebuild) setGTIDs(ctx context.Context, gtids string) error {
	// Nobody may read a binlog while it is removed.
	if err := r.endSessions(ctx, func(command string) bool { return strings.HasPrefix(command, "Binlog Dump") }); err != nil {
		return err
	}
	stmts := []string{"RESET BINARY LOGS AND GTIDS", "SET GLOBAL gtid_purged = " + text(gtids)}
	if r.mariaDB {
		stmts = []string{"RESET MASTER", "SET GLOBAL gtid_slave_pos = " + text(gtids)}
	}
	for _, q := range stmts {
		if err := exec(ctx, r.to, q); err != nil {
			return err
		}
	}
	return nil
}

// databases returns those of a server that are cellog's.
func databases(ctx context.Context, db *sql.DB) ([]string, error) {
	rows, err := allRows(ctx, db, "SHOW DATABASES")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, row := range rows {
		if n := row["Database"]; isOurs(n) {
			out = append(out, n)
		}
	}
	return out, nil
}

func isOurs(database string) bool {
	_, _, shard := cellog.ParseDatabaseName(database)
	return shard || database == "cellog_meta" || database == "cellog_buffer"
}
