package binlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func newReader(t *testing.T, n *mysqltest.Node, change func(*Config)) *Reader {
	t.Helper()
	a := mysqltest.Accounts.Tailer
	cfg := Config{Addr: n.Addr(), User: a.User, Password: a.Password, HeartbeatPeriod: 100 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var errEnd = errors.New("end")

// take reads from a position until a beat with the given number, and returns
// the transactions of shard databases and the last position.
func take(t *testing.T, r *Reader, from string, beat int64) (out []cdc.Transaction, position string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := r.Run(ctx, from, func(tx *cdc.Transaction) error {
		if tx.Position != "" {
			position = tx.Position
		}
		if len(tx.Changes) > 0 {
			out = append(out, *tx)
		}
		for _, b := range tx.Beats {
			if b.Beat == beat {
				return errEnd
			}
		}
		return nil
	})
	if !errors.Is(err, errEnd) {
		t.Fatal(err)
	}
	return out, position
}

func beat(t *testing.T, n *mysqltest.Node, number int64) {
	t.Helper()
	n.Exec(t, fmt.Sprintf("INSERT INTO cellog_meta.heartbeats VALUES ('c1', %d, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE beat = VALUES(beat), written_at = VALUES(written_at)", number))
}

func TestRowsComeBackExactly(t *testing.T) {
	n := mysqltest.Server(t)
	n.CreateShards(t, "trips", 2)
	r := newReader(t, n, nil)
	from, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	long := bytes.Repeat([]byte("x"), 70_000)
	want := []cdc.Row{
		{AddedID: 1, Epoch: 1, RowKey: uuid.MustParse("ffffffff-ffff-ffff-ffff-ffffffffffff"), Column: "BASE", Ref: 9223372036854775807,
			Body: []byte("\x00\x01\x02"), CreatedAt: time.Date(2026, 2, 28, 23, 59, 59, 999999000, time.UTC), TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{AddedID: 2, Epoch: 2147483647, RowKey: uuid.UUID{}, Column: "a", Ref: -9223372036854775808,
			Body: []byte{}, CreatedAt: time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{AddedID: 9223372036854775807, Epoch: 1, RowKey: uuid.MustParse("00112233-4455-6677-8899-aabbccdd2000"), Column: string(bytes.Repeat([]byte("C"), 64)), Ref: -1,
			Body: long, CreatedAt: time.Date(9999, 12, 31, 23, 59, 59, 1000, time.UTC)},
	}
	db := n.DB(t, "trips_0001")
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		var trace any
		if w.TraceParent != "" {
			trace = w.TraceParent
		}
		if _, err := tx.Exec("INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?, ?, ?)", int64(w.AddedID), int32(w.Epoch), w.RowKey[:], w.Column, int64(w.Ref), w.Body, w.CreatedAt, trace); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	// What is rolled back, or to a savepoint, is not there.
	n.Exec(t, "BEGIN; INSERT INTO trips_0000.entity VALUES (7, 1, 'a', 'BASE', 1, 'b', NOW(6), NULL); ROLLBACK")
	beat(t, n, 1)
	beat(t, n, 2)
	got, position := take(t, r, from, 2)
	if len(got) != 1 || len(got[0].Changes) != 1 {
		t.Fatalf("%d transactions", len(got))
	}
	c := got[0].Changes[0]
	if c.Shard != (cdc.ShardKey{Datastore: "trips", Shard: 1}) || c.Bad != nil {
		t.Errorf("%+v", c)
	}
	if d := cmp.Diff(want, c.Rows, cmpopts.IgnoreUnexported(cdc.Row{})); d != "" {
		t.Error(d)
	}
	// From the position on there is nothing left but what comes.
	beat(t, n, 3)
	if got, _ := take(t, r, position, 3); len(got) != 0 {
		t.Errorf("%d transactions come twice", len(got))
	}
}

func TestUnknownPositionIsLost(t *testing.T) {
	n := mysqltest.Start(t)
	n.CreateShards(t, "trips", 1)
	r := newReader(t, n, nil)
	n.Exec(t, "FLUSH BINARY LOGS")
	beat(t, n, 1)
	// MariaDB keeps a log that its last checkpoint still needs, for a moment.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		n.Exec(t, "PURGE BINARY LOGS BEFORE NOW() + INTERVAL 1 DAY")
		if logs(t, n) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first binlog is not purged")
		}
	}
	for _, from := range []string{"", "no gtid", "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5"} {
		err := r.Run(t.Context(), from, func(*cdc.Transaction) error { return errEnd })
		if !errors.Is(err, cdc.ErrPositionLost) {
			t.Errorf("from %q: %v", from, err)
		}
	}
}

// logs counts the server's binlogs.
func logs(t *testing.T, n *mysqltest.Node) (count int) {
	t.Helper()
	rows, err := n.DB(t, "").Query("SHOW BINARY LOGS")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		count++
	}
	return count
}

func TestTooBigTransactionNamesItsRows(t *testing.T) {
	n := mysqltest.Server(t)
	n.CreateShards(t, "trips", 2)
	r := newReader(t, n, func(c *Config) { c.MaxTransactionBytes = 50_000 })
	from, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.Exec(t, "BEGIN; INSERT INTO trips_0000.entity VALUES (1, 1, 'a', 'BASE', 1, REPEAT('b', 60000), NOW(6), NULL); INSERT INTO trips_0001.entity VALUES (1, 1, 'b', 'BASE', 1, 'c', NOW(6), NULL), (2, 1, 'b', 'BASE', 2, 'c', NOW(6), NULL); COMMIT")
	n.Exec(t, "INSERT INTO trips_0001.entity VALUES (3, 1, 'b', 'BASE', 3, 'c', NOW(6), NULL)")
	beat(t, n, 1)
	got, _ := take(t, r, from, 1)
	if len(got) != 2 {
		t.Fatalf("%d transactions", len(got))
	}
	for i, want := range []cellog.AddedID{1, 2} {
		if c := got[0].Changes[i]; c.UpTo != want || len(c.Rows) != 0 {
			t.Errorf("change %d: up to %d, %d rows", i, c.UpTo, len(c.Rows))
		}
	}
	if c := got[1].Changes[0]; c.UpTo != 0 || len(c.Rows) != 1 {
		t.Errorf("the next transaction: %+v", c)
	}
}

func TestReaderStops(t *testing.T) {
	n := mysqltest.Server(t)
	n.CreateShards(t, "trips", 1)
	r := newReader(t, n, nil)
	from, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	beat(t, n, 1)
	err = r.Run(ctx, from, func(*cdc.Transaction) error {
		cancel() // while a transaction is handled
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond) // while nothing comes
	defer cancel()
	now, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(ctx, now, func(*cdc.Transaction) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A tailer that is held up, by Kafka or by a long way through entity, must not
// lose the connection for it.
// A stop in the middle of a question cuts it off, without a race between the one
// who asks and the one who cuts.
func TestStopCutsAQuestionOff(t *testing.T) {
	r := newReader(t, mysqltest.Server(t), nil)
	cut := 0
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		if _, err := r.Now(ctx); err != nil {
			cut++
		}
		cancel()
	}
	if cut == 0 {
		t.Error("no question was cut off")
	}
}

func TestHandlerMayTakeLongerThanTheReadTimeout(t *testing.T) {
	n := mysqltest.Server(t)
	n.CreateShards(t, "trips", 1)
	r := newReader(t, n, func(c *Config) { c.HeartbeatPeriod, c.ReadTimeout = 50*time.Millisecond, 200*time.Millisecond })
	from, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(6) {
		beat(t, n, i+1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = r.Run(ctx, from, func(tx *cdc.Transaction) error {
		for _, b := range tx.Beats {
			if b.Beat == 6 {
				return errEnd
			}
		}
		<-time.After(300 * time.Millisecond) // what is tested is the time that passes
		return nil
	})
	if !errors.Is(err, errEnd) {
		t.Error(err)
	}
}

func TestServerGone(t *testing.T) {
	n := mysqltest.Start(t)
	n.CreateShards(t, "trips", 1)
	r := newReader(t, n, nil)
	from, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	beat(t, n, 1)
	err = r.Run(t.Context(), from, func(*cdc.Transaction) error { n.Kill(); return nil })
	if err == nil || errors.Is(err, cdc.ErrPositionLost) {
		t.Error(err)
	}
	if _, err := r.Now(t.Context()); err == nil {
		t.Error("a dead server answers")
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Addr: "a:1", HeartbeatPeriod: time.Minute, ReadTimeout: time.Minute}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
}

// Whatever bytes a row event holds, reading it ends with an error or rows, and
// never reads past the event.
func FuzzEntityRow(f *testing.F) {
	f.Add([]byte{0x80, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'a', 1, 'B', 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 'b', 0x99, 0xb9, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &stream{names: make(map[string]string)}
		for c := (cursor{data: data}); len(c.data) > 0; {
			before := len(c.data)
			var r cdc.Row
			if err := s.entityRow(&c, &r); err != nil {
				return
			}
			if len(c.data) >= before || len(r.Body) > len(data) {
				t.Fatal("no progress")
			}
		}
	})
}

// What a tailer does without a hint, after a promotion: the server's present
// position divides what it shows from what entity has. A hint that names another
// server's transactions would not: MySQL takes it, and MariaDB does not.
func TestPresentPositionDividesHistory(t *testing.T) {
	n := mysqltest.Start(t)
	n.CreateShards(t, "trips", 1)
	r := newReader(t, n, nil)
	put := func(id int) {
		n.Exec(t, fmt.Sprintf("INSERT INTO trips_0000.entity VALUES (%d, 1, '0123456789abcdef', 'BASE', %d, 'b', NOW(6), NULL)", id, id))
	}
	put(1)
	now, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(2)
	beat(t, n, 1)
	ids := func(from string) (out []cellog.AddedID) {
		t.Helper()
		got, _ := take(t, r, from, 1)
		for _, tx := range got {
			for _, c := range tx.Changes {
				for _, row := range c.Rows {
					out = append(out, row.AddedID)
				}
			}
		}
		return out
	}
	if got := ids(now); !slices.Equal(got, []cellog.AddedID{2}) {
		t.Errorf("from the present position: %v", got)
	}
	if got := ids(""); !slices.Equal(got, []cellog.AddedID{1, 2}) {
		t.Errorf("from the beginning: %v", got)
	}
	if mysqltest.Flavour() == "mysql" {
		if got := ids(now + ",3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5"); !slices.Equal(got, []cellog.AddedID{2}) {
			t.Errorf("from another server's position: %v", got)
		}
		return
	}
	err = r.Run(t.Context(), "0-4711-1000000", func(*cdc.Transaction) error { return errEnd })
	if !errors.Is(err, cdc.ErrPositionLost) {
		t.Errorf("from another server's position: %v", err)
	}
}

// A tailer may take nothing for longer than servers bear it by default.
func TestServerBearsThatNothingIsTaken(t *testing.T) {
	n := mysqltest.Start(t, "--net-write-timeout=1")
	n.CreateShards(t, "trips", 1)
	r := newReader(t, n, nil)
	from, err := r.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 { // more than fits between the two
		n.Exec(t, fmt.Sprintf("INSERT INTO trips_0000.entity VALUES (%d, 1, '0123456789abcdef', 'BASE', %d, REPEAT('b', 1000000), NOW(6), NULL)", i+1, i))
	}
	beat(t, n, 1)
	rows := 0
	err = r.Run(t.Context(), from, func(tx *cdc.Transaction) error {
		if len(tx.Beats) > 0 {
			return errEnd
		}
		if rows += len(tx.Changes); rows == 1 {
			<-time.After(4 * time.Second) // what is tested is the time that passes
		}
		return nil
	})
	if !errors.Is(err, errEnd) || rows != 40 {
		t.Errorf("%d rows, %v", rows, err)
	}
}
