package tail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
)

// What may happen to a binlog, and what then: docs/tailing.md.

func (r *rig) mariadb() bool { return r.node.Flavour() == mysqlserver.MariaDB }

// alone makes all writes go over one session, which q sets up.
func (r *rig) alone(t testing.TB, q string) {
	t.Helper()
	r.db.SetMaxOpenConns(1)
	r.exec(t, q)
}

func (r *rig) reset(t testing.TB) {
	t.Helper()
	q := "RESET BINARY LOGS AND GTIDS"
	if r.mariadb() {
		q = "RESET MASTER"
	}
	// Refused while a dump thread is at work on MariaDB until it has ended.
	waitFor(t, 20*time.Second, func() error { _, err := r.db.Exec(q); return err })
}

func (r *rig) mustFlow(t testing.TB, tl *cdc.Tailer) {
	t.Helper()
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	if s := tl.Status(); len(s.Stopped) != 0 {
		t.Errorf("stopped: %v", s.Stopped)
	}
}

func TestResetBinlogHealsFromEntity(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 4)
	rnd := seeded(t)
	r.putSome(t, rnd, 300)
	tl := r.run(t, nil)
	r.waitDrained(t, time.Minute)
	stop(t, tl)
	// While the tailer is down.
	r.reset(t)
	r.putSome(t, rnd, 20)
	tl = r.run(t, nil)
	r.mustFlow(t, tl)
	// While it reads.
	r.reset(t)
	r.putSome(t, rnd, 100)
	r.mustFlow(t, tl)
	stop(t, tl)
	// While it is down, and then as many transactions come as there were, so that
	// the position names some that were never read; shard 3 has no later ones.
	r.reset(t)
	r.beats(t, 50)
	tl = r.run(t, nil)
	r.waitDrained(t, time.Minute)
	waitFor(t, time.Minute, tl.Ready)
	stop(t, tl)
	r.reset(t)
	if err := r.put(t.Context(), 3, 5, rnd); err != nil {
		t.Fatal(err)
	}
	r.beats(t, 2000)
	tl = r.run(t, nil)
	r.mustFlow(t, tl)
}

// beats makes transactions that hold no cells.
func (r *rig) beats(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		r.exec(t, "INSERT INTO cellog_meta.heartbeats VALUES ('other', ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE beat = VALUES(beat)", i)
	}
}

// restart starts the server again after change did something to its directory.
func (r *rig) restart(t testing.TB, change func(dir string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.node.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	change(filepath.Join(r.node.Dir(), "data"))
	r.node.Restart(t)
	waitFor(t, time.Minute, func() error { return r.db.PingContext(t.Context()) })
	r.exec(t, "SET GLOBAL read_only = 0")
}

func TestServerReplacedByOneWithOtherGTIDs(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 3)
	rnd := seeded(t)
	r.putSome(t, rnd, 300)
	tl := r.run(t, nil)
	r.waitDrained(t, time.Minute)
	stop(t, tl)
	r.putSome(t, rnd, 30) // in the data, in no binlog
	r.restart(t, func(dir string) {
		if err := os.Remove(filepath.Join(dir, "auto.cnf")); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	})
	if r.mariadb() {
		r.exec(t, "SET GLOBAL server_id = 4711")
	}
	r.reset(t)
	tl = r.run(t, nil)
	r.mustFlow(t, tl)
	r.putSome(t, rnd, 30)
	r.mustFlow(t, tl)
}

func TestRestoredBackupIsNoSource(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 2)
	rnd := seeded(t)
	r.putSome(t, rnd, 50)
	tl := r.run(t, nil)
	r.waitDrained(t, time.Minute)
	stop(t, tl)
	backup := filepath.Join(t.TempDir(), "backup")
	r.restart(t, func(dir string) {
		if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	})
	later := r.total()
	for s := range r.shards {
		if err := r.put(t.Context(), cellog.ShardID(s), 10, rnd); err != nil {
			t.Fatal(err)
		}
	}
	tl = r.run(t, nil)
	r.waitDrained(t, time.Minute)
	stop(t, tl)
	r.restart(t, func(dir string) {
		if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(backup))); err != nil {
			t.Fatal(err)
		}
	})
	refused := func(want error) {
		t.Helper()
		tl := r.run(t, nil)
		waitFor(t, time.Minute, func() error {
			if s := tl.Status(); !errors.Is(s.Err, want) || tl.Ready() == nil {
				return fmt.Errorf("session ended with %v, want %v", s.Err, want)
			}
			return nil
		})
		stop(t, tl)
	}
	refused(cdc.ErrNodeBehind)
	// It takes writes: other cells stand under numbers that are final.
	r.mu.Lock()
	before := r.sent
	r.sent = nil
	r.mu.Unlock()
	for s := range r.shards {
		if err := r.put(t.Context(), cellog.ShardID(s), 30, rnd); err != nil {
			t.Fatal(err)
		}
	}
	r.mu.Lock()
	r.sent = before
	r.mu.Unlock()
	refused(cdc.ErrNodeDiffers)
	if r.total() <= later {
		t.Fatal("nothing was put after the backup")
	}
	r.mustBeClean(t) // nothing of it was published
}

// safeBuffer takes a logger's lines.
type safeBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Positions hold on whatever GTIDs the server gives.
func TestGTIDsOfEveryKind(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 2)
	rnd := seeded(t)
	r.alone(t, "DO 1")
	kinds := []string{"SET SESSION gtid_domain_id = 5", "SET SESSION gtid_domain_id = 4294967295", "SET SESSION gtid_domain_id = 0; SET SESSION server_id = 99", "SET SESSION gtid_domain_id = 5"}
	if !r.mariadb() {
		other := uuid.NewString()
		own := r.node.Query(t, "SELECT @@server_uuid")
		kinds = []string{"SET gtid_next = '" + own + ":1000000'", "SET gtid_next = '" + own + ":900000'", "SET gtid_next = '" + other + ":7'", "SET gtid_next = '" + other + ":3'",
			"SET gtid_next = '" + own + ":blue:5'", "SET gtid_next = 'AUTOMATIC:green'", "SET gtid_next = '" + other + ":" + strings.Repeat("t", 32) + ":9'"}
	}
	for _, q := range kinds {
		var lost safeBuffer
		tl := r.run(t, func(c *cdc.Config, _ *binlog.Config) { c.Logger = slog.New(slog.NewTextHandler(&lost, nil)) })
		r.putSome(t, rnd, 20)
		r.exec(t, q)
		if err := r.put(t.Context(), 1, 3, rnd); err != nil {
			t.Fatal(q, err)
		}
		if !r.mariadb() {
			r.exec(t, "SET gtid_next = 'AUTOMATIC'")
		}
		r.putSome(t, rnd, 20)
		r.mustFlow(t, tl)
		stop(t, tl)
		if strings.Contains(lost.String(), "position lost") {
			t.Errorf("%s: %s", q, lost.String())
		}
	}
}

// settled runs a tailer until what it does at a start is behind it: it goes on
// from a position, and the looks at the heads are done.
func (r *rig) settled(t testing.TB, rnd *rand.Rand, change func(*cdc.Config, *binlog.Config)) *cdc.Tailer {
	t.Helper()
	tl := r.run(t, change)
	r.putSome(t, rnd, 10)
	r.waitDrained(t, time.Minute)
	stop(t, tl)
	tl = r.run(t, change)
	waitFor(t, time.Minute, tl.Ready)
	later := time.Now().Add(10 * beatEvery)
	waitFor(t, time.Minute, func() error {
		if tl.Status().LastBeat.Before(later) {
			return errors.New("few heartbeats")
		}
		return nil
	})
	return tl
}

// Cells that the server logs as statements are found soon, without a row event.
func TestCellsPutAsStatements(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	tl := r.settled(t, rnd, nil)
	r.alone(t, "SET SESSION binlog_format = 'STATEMENT'")
	for _, format := range []string{"STATEMENT", "MIXED", "ROW"} {
		r.repeatable = format != "ROW"
		r.exec(t, "SET SESSION binlog_format = '"+format+"'")
		for range 3 {
			if err := r.put(t.Context(), 1, 4, rnd); err != nil {
				t.Fatal(err)
			}
		}
		r.waitDrained(t, 20*time.Second) // far below LookEvery
	}
	r.mustFlow(t, tl)
}

// What is not logged at all is found by a look, or when the next cell comes.
func TestCellsPutPastTheBinlog(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 3)
	rnd := seeded(t)
	tl := r.settled(t, rnd, func(c *cdc.Config, _ *binlog.Config) { c.LookEvery = 300 * time.Millisecond })
	r.alone(t, "SET SESSION sql_log_bin = 0")
	if err := r.put(t.Context(), 1, 4, rnd); err != nil {
		t.Fatal(err)
	}
	r.waitDrained(t, 30*time.Second)
	stop(t, tl)
	r.exec(t, "SET SESSION sql_log_bin = 1")
	tl = r.settled(t, rnd, nil)
	r.exec(t, "SET SESSION sql_log_bin = 0")
	if err := r.put(t.Context(), 1, 4, rnd); err != nil {
		t.Fatal(err)
	}
	r.exec(t, "SET SESSION sql_log_bin = 1")
	if err := r.put(t.Context(), 1, 4, rnd); err != nil {
		t.Fatal(err)
	}
	r.waitDrained(t, 30*time.Second)
	r.mustFlow(t, tl)
}

// What else servers may write beside or instead of full rows.
func TestBinlogOptionsAreTolerated(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	tl := r.run(t, nil)
	options := []string{"binlog_row_image = 'MINIMAL'", "binlog_row_image = 'NOBLOB'", "binlog_row_image = 'FULL'"}
	if r.mariadb() {
		options = append(options, "binlog_annotate_row_events = 1", "binlog_annotate_row_events = 0")
	} else {
		options = append(options, "binlog_rows_query_log_events = 1", "binlog_row_value_options = 'PARTIAL_JSON'")
	}
	for _, o := range options {
		r.alone(t, "SET SESSION "+o)
		r.putSome(t, rnd, 30)
		r.mustFlow(t, tl)
	}
	for _, q := range []string{"SET GLOBAL binlog_checksum = 'NONE'", "SET GLOBAL binlog_checksum = 'CRC32'"} {
		r.exec(t, q)
		r.putSome(t, rnd, 30)
		r.mustFlow(t, tl)
	}
}

// A statement that takes a shard's cells away stops the shard at once; when they
// are back, a restart goes on.
func TestLostTableStopsItsShard(t *testing.T) {
	for _, c := range []struct {
		what, sql, back string
	}{
		{"RENAME", "RENAME TABLE %[1]s.entity TO %[1]s.gone", "RENAME TABLE %[1]s.gone TO %[1]s.entity"},
		{"ALTER", "USE %[1]s; ALTER TABLE entity RENAME gone", "USE %[1]s; ALTER TABLE gone RENAME entity"},
		{"TRUNCATE", "CREATE TABLE %[1]s.copy AS SELECT * FROM %[1]s.entity; TRUNCATE TABLE %[1]s.entity", "SET SESSION sql_log_bin = 0; INSERT INTO %[1]s.entity SELECT * FROM %[1]s.copy"},
		{"DROP", "DROP TABLE %[1]s.entity", ""},
		{"DROP DATABASE", "DROP DATABASE %[1]s", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, mysqltest.Server(t), 2)
			rnd := seeded(t)
			tl := r.run(t, nil)
			if err := errors.Join(r.put(t.Context(), 0, 20, rnd), r.put(t.Context(), 1, 20, rnd)); err != nil {
				t.Fatal(err)
			}
			r.waitDrained(t, time.Minute)
			r.alone(t, fmt.Sprintf(c.sql, r.database(1)))
			why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
			if !errors.Is(why, cdc.ErrShard) || !strings.Contains(why.Error(), c.what) {
				t.Errorf("stopped with: %v", why)
			}
			if err := r.put(t.Context(), 0, 5, rnd); err != nil {
				t.Fatal(err)
			}
			r.waitDrained(t, time.Minute)
			stop(t, tl)
			tl = r.run(t, nil)
			waitFor(t, time.Minute, func() error {
				if s := tl.Status(); !errors.Is(s.Err, cdc.ErrNoNode) || tl.Ready() == nil {
					return fmt.Errorf("session ended with %v, want no node", s.Err)
				}
				return nil
			})
			stop(t, tl)
			if c.back == "" {
				return
			}
			r.exec(t, fmt.Sprintf(c.back, r.database(1)))
			r.exec(t, "SET SESSION sql_log_bin = 1")
			tl = r.run(t, nil)
			if err := errors.Join(r.put(t.Context(), 0, 5, rnd), r.put(t.Context(), 1, 5, rnd)); err != nil {
				t.Fatal(err)
			}
			r.mustFlow(t, tl)
		})
	}
}

// A binlog whose bytes are damaged is as good as none.
func TestDamagedBinlogHealsFromEntity(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 2)
	rnd := seeded(t)
	r.putSome(t, rnd, 100)
	tl := r.run(t, nil)
	r.waitDrained(t, time.Minute)
	stop(t, tl)
	r.exec(t, "FLUSH BINARY LOGS")
	r.putSome(t, rnd, 100)
	logs, err := r.binlogs(t)
	if err != nil {
		t.Fatal(err)
	}
	r.restart(t, func(dir string) { damage(t, filepath.Join(dir, logs[len(logs)-1]), rnd) })
	r.putSome(t, rnd, 30)
	tl = r.run(t, nil)
	r.mustFlow(t, tl)
}

// damage overwrites a piece in the middle of a file.
func damage(t testing.TB, path string, rnd *rand.Rand) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b) / 2; i < len(b)/2+200; i++ {
		b[i] = byte(rnd.Uint32())
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
