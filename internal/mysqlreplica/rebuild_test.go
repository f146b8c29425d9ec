package mysqlreplica_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqltest"
)

const shards = 4

func config(n *mysqltest.Node) mysqlconn.Config {
	return mysqlconn.Config{Addr: n.Addr(), User: mysqltest.Accounts.Admin.User, Password: mysqltest.Accounts.Admin.Password}
}

func rebuildConfig(from, to *mysqltest.Node) mysqlreplica.RebuildConfig {
	return mysqlreplica.RebuildConfig{From: config(from), To: config(to), Source: source(from)}
}

// fill puts rows into shards as a worker would, random in all columns.
func fill(ctx context.Context, db *sql.DB, r *rand.Rand, shard, rows, bodySize int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it is nothing
	d := cellog.DatabaseName("trips", cellog.ShardID(shard))
	if _, err := tx.ExecContext(ctx, "UPDATE "+d+".shard_log SET last_added_id = LAST_INSERT_ID(last_added_id + ?) WHERE id = 1", rows); err != nil {
		return err
	}
	var last int
	if err := tx.QueryRowContext(ctx, "SELECT LAST_INSERT_ID()").Scan(&last); err != nil {
		return err
	}
	q, args := "INSERT INTO "+d+".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at, traceparent) VALUES ", []any{}
	for i := range rows {
		q += ",(?,1,?,'BASE',?,?,?,?)"[1-min(i, 1):]
		body, key := make([]byte, bodySize), make([]byte, 16)
		for _, b := range [][]byte{body, key} {
			for j := range b {
				b[j] = byte(r.Uint32())
			}
		}
		var trace any
		if r.IntN(2) == 0 {
			trace = "00-it's \\ a trace"
		}
		args = append(args, last-rows+1+i, key, int64(r.Uint64()), body, time.Now().UTC(), trace)
	}
	if _, err := tx.ExecContext(ctx, q, args...); err != nil {
		return err
	}
	return tx.Commit()
}

// cluster makes two nodes with data of every kind that cellog keeps.
func cluster(t *testing.T) *mysqltest.Set {
	t.Helper()
	c := mysqltest.Cluster(t, 1)
	c.Master.CreateShards(t, "trips", shards)
	db := c.Master.DB(t, "")
	r := rand.New(rand.NewPCG(1, 2))
	for s := range shards {
		for range 4 {
			must(t, fill(context.Background(), db, r, s, 500, 300))
		}
	}
	c.Master.Exec(t, `CREATE TABLE trips_0001.idx_x (f_s VARBINARY(64) NOT NULL, f_d DECIMAL(38,10) NULL, f_f DOUBLE NULL, f_b TINYINT NULL,
		f_t DATETIME(6) NULL, stamp TIMESTAMP NULL, word VARCHAR(20) CHARACTER SET utf8mb4 NULL, old VARCHAR(20) CHARACTER SET latin1 NULL, row_key BINARY(16) NOT NULL, PRIMARY KEY (f_s, row_key))`)
	c.Master.Exec(t, `INSERT INTO trips_0001.idx_x VALUES ('it''s', 1234567890123456789012345678.0123456789, 0.1, 1, '2026-01-02 03:04:05.678901', '2026-01-02 03:04:05', 'Zoë 😀 \\', 'Zoë', 'a'),
		('', -0.0000000001, 1.7976931348623157e308, NULL, '9999-12-31 23:59:59.999999', NULL, '', '', ''), (X'00275C22FF', NULL, 5e-324, 0, NULL, NULL, NULL, NULL, X'00')`)
	c.Master.Exec(t, "CREATE TABLE trips_0001.zero (id INT AUTO_INCREMENT PRIMARY KEY, `odd ``name` INT, s DOUBLE); INSERT INTO trips_0001.zero VALUES (7, 1, 1/3); UPDATE trips_0001.zero SET id = 0")
	c.Master.Exec(t, "CREATE DATABASE empty_0000")
	ins := "INSERT INTO cellog_buffer.rejected_cells (datastore, shard, row_key, column_name, ref_key, body, reason, rejected_at) VALUES ('trips', 1, 'k', 'BASE', ?, ?, 'conflict', NOW(6))"
	for i, body := range [][]byte{{}, bytes.Repeat([]byte(`'\`), 4<<20), bytes.Repeat([]byte{0}, 8<<20)} {
		_, err := db.Exec(ins, i, body)
		must(t, err)
	}
	c.Sync(t)
	return c
}

// diverge makes a node an old master with transactions of its own.
func diverge(t *testing.T, n *mysqltest.Node) {
	t.Helper()
	ctx, db := context.Background(), n.DB(t, "")
	must(t, mysqlreplica.Stop(ctx, db))
	must(t, mysqlreplica.SetReadOnly(ctx, db, false))
	must(t, fill(ctx, db, rand.New(rand.NewPCG(3, 4)), 2, 10, 50))
	n.Exec(t, "CREATE DATABASE trips_0099; CREATE TABLE trips_0099.entity (id INT PRIMARY KEY); CREATE DATABASE mine; CREATE TABLE mine.t (id INT PRIMARY KEY); INSERT INTO mine.t VALUES (1)")
	n.Exec(t, "SET sql_log_bin = 0; CREATE USER its_own@localhost IDENTIFIED BY 'x'; SET sql_log_bin = 1")
	must(t, mysqlreplica.SetReadOnly(ctx, db, true))
}

// write writes to a node until the returned function is called, which says how
// often it did.
func write(t *testing.T, n *mysqltest.Node) func() int {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	db := n.DB(t, "")
	var wg sync.WaitGroup
	times := 0
	wg.Go(func() {
		r := rand.New(rand.NewPCG(5, 6))
		for ctx.Err() == nil {
			if err := fill(ctx, db, r, r.IntN(shards), 1+r.IntN(5), 200); err != nil && ctx.Err() == nil {
				t.Errorf("write during the rebuild: %v", err)
				return
			}
			times++
		}
	})
	return sync.OnceValue(func() int {
		cancel()
		wg.Wait()
		return times
	})
}

// content is a node's cellog tables with their definitions and checksums.
func content(t *testing.T, n *mysqltest.Node) []string {
	t.Helper()
	db := n.DB(t, "")
	rows, err := db.Query("SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema REGEXP '^(cellog_|trips_|empty_)' AND table_type = 'BASE TABLE' ORDER BY 1, 2")
	must(t, err)
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var d, n string
		must(t, rows.Scan(&d, &n))
		tables = append(tables, d+"."+n)
	}
	must(t, rows.Err())
	var out []string
	for _, tb := range tables {
		var name, sum, create string
		must(t, db.QueryRow("CHECKSUM TABLE "+tb+" EXTENDED").Scan(&name, &sum))
		must(t, db.QueryRow("SHOW CREATE TABLE "+tb).Scan(&name, &create))
		out = append(out, tb+" "+sum+" "+create)
	}
	return append(out, n.Query(t, "SELECT GROUP_CONCAT(schema_name ORDER BY 1) FROM information_schema.schemata WHERE schema_name REGEXP '^(cellog_|trips_|empty_)'"))
}

func checkEqual(t *testing.T, c *mysqltest.Set) {
	t.Helper()
	ctx, minion := within(t), c.Minions[0]
	c.Sync(t)
	want, got := content(t, c.Master), content(t, minion)
	if !slices.Equal(want, got) {
		for i := range max(len(want), len(got)) {
			w, g := append(want, make([]string, len(got))...)[i], append(got, make([]string, len(want))...)[i]
			if w != g {
				t.Errorf("want %.300q\ngot  %.300q", w, g)
			}
		}
	}
	all, err := mysqlreplica.GTIDs(ctx, c.Master.DB(t, ""))
	must(t, err)
	has, err := mysqlreplica.GTIDs(ctx, minion.DB(t, ""))
	must(t, err)
	if all != has {
		t.Errorf("the minion has the transactions %s, the master %s", has, all)
	}
	s, err := mysqlreplica.Identity(ctx, minion.DB(t, ""))
	must(t, err)
	if !s.ReadOnly || !s.MariaDB && minion.Query(t, "SELECT @@global.super_read_only") != "1" {
		t.Error("the minion is writable")
	}
	if s.MariaDB {
		if own := minion.Query(t, "SELECT @@global.gtid_binlog_pos"); strings.HasPrefix(own, "0-"+minion.Query(t, "SELECT @@global.server_id")+"-") {
			t.Errorf("the minion's binlog has a transaction of its own: %s", own)
		}
	}
}

func TestRebuildOfADivergedMasterWhileTheOtherOneWorks(t *testing.T) {
	ctx, c := within(t), cluster(t)
	to := c.Minions[0]
	diverge(t, to)
	must(t, mysqlreplica.Forget(ctx, to.DB(t, "")))
	users := to.Query(t, "SELECT GROUP_CONCAT(User, Host, authentication_string ORDER BY User, Host) FROM mysql.user")
	stop := write(t, c.Master)
	var last mysqlreplica.Progress
	cfg := rebuildConfig(c.Master, to)
	cfg.Progress = func(p mysqlreplica.Progress) { last = p }
	err := mysqlreplica.Rebuild(ctx, cfg)
	t.Logf("%d transactions during the rebuild; %+v", stop(), last)
	must(t, err)
	if last.TablesDone != last.Tables || last.Rows < 4*2000 || last.Bytes < 16<<20 {
		t.Errorf("%+v", last)
	}
	checkEqual(t, c)
	if now := to.Query(t, "SELECT GROUP_CONCAT(User, Host, authentication_string ORDER BY User, Host) FROM mysql.user"); now != users || !strings.Contains(now, "its_own") {
		t.Errorf("accounts %s, before %s", now, users)
	}
	if got := to.Query(t, "SELECT COUNT(*) FROM mine.t"); got != "1" {
		t.Errorf("a database that is not cellog's has %s rows, want 1", got)
	}
	// It goes on over a restart, and can be copied from and be opened.
	to.Kill()
	to.Restart(t)
	must(t, fill(ctx, c.Master.DB(t, ""), rand.New(rand.NewPCG(7, 8)), 1, 3, 100))
	checkEqual(t, c)
	old := c.Master
	must(t, mysqlreplica.Forget(ctx, to.DB(t, "")))
	must(t, mysqlreplica.SetReadOnly(ctx, to.DB(t, ""), false))
	must(t, fill(ctx, to.DB(t, ""), rand.New(rand.NewPCG(9, 9)), 1, 3, 100))
	must(t, mysqlreplica.SetReadOnly(ctx, old.DB(t, ""), true))
	must(t, fillIgnoringReadOnly(ctx, old)) // it has something of its own, too
	c.Master, c.Minions = to, []*mysqltest.Node{old}
	must(t, mysqlreplica.Rebuild(ctx, rebuildConfig(to, old)))
	checkEqual(t, c)
}

// fillIgnoringReadOnly writes as a frozen worker's session would.
func fillIgnoringReadOnly(ctx context.Context, n *mysqltest.Node) error {
	db, err := mysqlconn.Open(config(n))
	if err != nil {
		return err
	}
	defer mysqlconn.Close(db) //nolint:errcheck // a test's
	if err := mysqlreplica.SetReadOnly(ctx, db, false); err != nil {
		return err
	}
	if err := fill(ctx, db, rand.New(rand.NewPCG(1, 1)), 0, 5, 20); err != nil {
		return err
	}
	return mysqlreplica.SetReadOnly(ctx, db, true)
}

func TestAnInterruptedRebuildIsNoNodeAndIsRepeated(t *testing.T) {
	ctx, c := within(t), cluster(t)
	to := c.Minions[0]
	diverge(t, to)
	stop := write(t, c.Master)
	defer stop()
	for _, interrupt := range []string{"cancel", "kill", "kill at once"} {
		cctx, cancel := context.WithCancel(ctx)
		defer cancel()
		cfg := rebuildConfig(c.Master, to)
		seen := 0
		var once sync.Once
		cfg.Progress = func(p mysqlreplica.Progress) {
			if seen++; seen < 10 && interrupt != "kill at once" {
				return
			}
			once.Do(func() {
				if interrupt == "cancel" {
					cancel()
				} else {
					to.Kill()
				}
			})
		}
		err := mysqlreplica.Rebuild(cctx, cfg)
		if err == nil {
			t.Fatalf("%s: it ended well", interrupt)
		}
		t.Log(interrupt, err)
		if strings.Contains(err.Error(), cfg.To.Password) || !strings.Contains(err.Error(), to.Addr()) {
			t.Errorf("the error names no node, or a password: %v", err)
		}
		if interrupt != "cancel" {
			to.Restart(t)
		}
		db := to.DB(t, "")
		var name string
		if err := db.QueryRow("SELECT name FROM cellog_meta.cluster").Scan(&name); !mysqlconn.IsMissing(err) {
			t.Errorf("%s: it names its cluster %q, %v", interrupt, name, err)
		}
		if s, err := mysqlreplica.Identity(ctx, db); err != nil || !s.ReadOnly {
			t.Errorf("%s: it is writable, %v", interrupt, err)
		}
		if st := status(t, db); st.Configured {
			t.Errorf("%s: it replicates: %+v", interrupt, st)
		}
		// Nor can it be copied from.
		if err := mysqlreplica.Rebuild(ctx, rebuildConfig(to, c.Master)); !errors.Is(err, mysqlreplica.ErrRefused) {
			t.Errorf("%s: copied from: %v", interrupt, err)
		}
	}
	must(t, mysqlreplica.Rebuild(ctx, rebuildConfig(c.Master, to)))
	stop()
	checkEqual(t, c)
}

func TestRebuildRefusesAMaster(t *testing.T) {
	ctx, c := within(t), cluster(t)
	before := content(t, c.Master)
	for name, cfg := range map[string]mysqlreplica.RebuildConfig{
		"writable":       rebuildConfig(c.Minions[0], c.Master),
		"its own minion": rebuildConfig(c.Minions[0], c.Master),
		"itself":         rebuildConfig(c.Minions[0], c.Minions[0]),
	} {
		if name == "its own minion" {
			must(t, mysqlreplica.SetReadOnly(ctx, c.Master.DB(t, ""), true))
		} else {
			must(t, mysqlreplica.SetReadOnly(ctx, c.Master.DB(t, ""), false))
		}
		err := mysqlreplica.Rebuild(ctx, cfg)
		if !errors.Is(err, mysqlreplica.ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", name, err)
		}
		t.Log(err)
	}
	if !slices.Equal(before, content(t, c.Master)) {
		t.Error("the master has changed")
	}
}

// The lock is given up, and writes go on, when a long statement holds it up.
func TestRebuildDoesNotHoldUpABusyMaster(t *testing.T) {
	ctx, c := within(t), cluster(t)
	db := c.Master.DB(t, "")
	busy, err := db.Conn(ctx)
	must(t, err)
	defer busy.Close()
	_, err = busy.ExecContext(ctx, "LOCK TABLES trips_0000.entity WRITE")
	must(t, err)
	err = mysqlreplica.Rebuild(ctx, rebuildConfig(c.Master, c.Minions[0]))
	if !errors.Is(err, mysqlreplica.ErrBusy) {
		t.Fatalf("%v, want ErrBusy", err)
	}
	t.Log(err)
	if st := status(t, c.Minions[0].DB(t, "")); !st.Receiving {
		t.Errorf("the minion was touched: %+v", st)
	}
	began := time.Now()
	must(t, fill(ctx, db, rand.New(rand.NewPCG(1, 1)), 1, 1, 10))
	if d := time.Since(began); d > 4*time.Second {
		t.Errorf("a write waited for %v", d)
	}
	_, err = busy.ExecContext(ctx, "UNLOCK TABLES")
	must(t, err)
	must(t, mysqlreplica.Rebuild(ctx, rebuildConfig(c.Master, c.Minions[0])))
	checkEqual(t, c)
}

// BenchmarkRebuild copies entity rows of 412 bytes, as billing's trips have.
func BenchmarkRebuild(b *testing.B) {
	const rows = 200_000
	ctx := context.Background()
	from := mysqltest.Start(b)
	to := mysqltest.Start(b)
	must(b, mysqlreplica.SetReadOnly(ctx, to.DB(b, ""), true))
	from.CreateShards(b, "trips", shards)
	db := from.DB(b, "")
	r := rand.New(rand.NewPCG(1, 2))
	// 412 bytes with the other columns' 8+4+16+4+8+8.
	for i := range rows / 1000 {
		must(b, fill(ctx, db, r, i%shards, 1000, 412-48))
	}
	b.ResetTimer()
	for b.Loop() {
		must(b, mysqlreplica.Rebuild(ctx, rebuildConfig(from, to)))
	}
	perSecond := float64(rows) * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(perSecond, "rows/s")
	b.ReportMetric(perSecond*412/1e6, "MB/s")
	if got := to.Query(b, fmt.Sprintf("SELECT COUNT(*) * %d FROM trips_0000.entity", shards)); got != fmt.Sprint(rows) {
		b.Errorf("%s rows, want %d", got, rows)
	}
}

// A rebuilt server that cannot connect to its source is not waited for without end.
func TestRebuildEndsWithoutASource(t *testing.T) {
	ctx, c := within(t), cluster(t)
	cfg := rebuildConfig(c.Master, c.Minions[0])
	cfg.Source.Password, cfg.FollowWithin = "wrong", time.Second
	if err := mysqlreplica.Rebuild(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("%v, want that it gives up", err)
	}
}
