package tail

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/tests/harness"
)

// plainBody returns a cell's JSON with a text of n bytes and its stored form
// without compression, which a binlog can compress.
func plainBody(n int) (json, stored []byte) {
	text := strings.Repeat("the quick brown fox ", n/20+1)[:n]
	pack := binary.BigEndian.AppendUint32([]byte("\x81\xa4text\xdb"), uint32(n))
	pack = append(pack, text...)
	stored = binary.BigEndian.AppendUint32([]byte{2}, crc32.Checksum(pack, crc32.MakeTable(crc32.Castagnoli)))
	return []byte(`{"text":"` + text + `"}`), append(stored, pack...)
}

// putBig stores rows cells with bodies of size bytes in shard 0, in one
// transaction that the server makes by itself; note says to remember them.
func (r *rig) putBig(t testing.TB, rows, size int, note bool) {
	t.Helper()
	json, stored := plainBody(size)
	db := r.database(0)
	r.exec(t, "CREATE TABLE IF NOT EXISTS "+db+".src (body MEDIUMBLOB)")
	r.exec(t, "DELETE FROM "+db+".src")
	r.exec(t, "INSERT INTO "+db+".src VALUES (?)", stored)
	k := cdc.ShardKey{Datastore: r.store, Shard: 0}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := len(r.sent[k])
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	// Numbers from digits: servers bound the depth of a recursion.
	digit := "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	number, from, ten := "1", "", 1
	for i := 0; ten < rows; i++ {
		number += fmt.Sprintf(" + %d*d%d.d", ten, i)
		from += fmt.Sprintf(", %s d%d", digit, i)
		ten *= 10
	}
	conn, err := r.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, q := range []string{
		"BEGIN",
		fmt.Sprintf("UPDATE %s.shard_log SET last_added_id = last_added_id + %d WHERE id = 1", db, rows),
		fmt.Sprintf("INSERT INTO %s.entity SELECT %d + n.n, 1, UNHEX(LPAD(HEX(%d + n.n), 32, '0')), 'BASE', 7, body, '2026-01-02 03:04:05', NULL FROM %s.src, (SELECT %s AS n FROM (SELECT 1) one%s) n WHERE n.n <= %d ORDER BY n.n",
			db, first, first, db, number, from, rows),
		"COMMIT",
	} {
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if r.sent == nil {
		r.sent = make(map[cdc.ShardKey][]cellog.Cell)
	}
	for i := 0; note && i < rows; i++ {
		var row uuid.UUID
		binary.BigEndian.PutUint64(row[8:], uint64(first+i+1))
		r.sent[k] = append(r.sent[k], cellog.Cell{
			Key:       cellog.Key{Row: row, Column: "BASE", Ref: 7},
			Datastore: r.store, AddedID: cellog.AddedID(first + i + 1), Epoch: 1, CreatedAt: at, Body: json,
		})
	}
}

// compress switches the compression of the binlog on for new sessions.
func (r *rig) compress(t testing.TB) {
	t.Helper()
	on, off := "SET GLOBAL binlog_transaction_compression = ON", "SET GLOBAL binlog_transaction_compression = OFF"
	if r.node.Flavour() == mysqlserver.MariaDB {
		on, off = "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = OFF"
	}
	r.exec(t, on)
	t.Cleanup(func() { r.exec(t, off) })
	r.db.SetMaxIdleConns(0)
}

// peak returns the most memory that a process ever had, in bytes.
func peak(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// bigTransaction puts one transaction of rows cells of size bytes, and demands
// that a tailer takes it with at most so much memory more than it had before,
// that a second tailer stands by all the time, and that another cluster's goes on.
func bigTransaction(t *testing.T, compressed bool, rows, size, most int, note bool) *rig {
	r := newRig(t, mysqltest.Start(t), 1)
	rnd := seeded(t)
	other := newRig(t, mysqltest.Server(t), 2)
	other.cluster, other.broker, other.kafka = "c2", r.broker, r.kafka
	other.firstOpen(t)
	quiet := other.run(t, func(c *cdc.Config, _ *binlog.Config) { c.BeatEvery, c.StandBy = 500*time.Millisecond, 3*time.Second })
	if compressed {
		r.compress(t)
	}
	c := startChild(t, r.spec(), fmt.Sprintf("GOMEMLIMIT=%d", most*3/4))
	const small = 200
	r.putSome(t, rnd, small)
	r.waitDrained(t, 2*time.Minute)
	base := peak(t, c.cmd.Process.Pid)
	second := r.run(t, func(c *cdc.Config, _ *binlog.Config) { c.StandBy = 10 * time.Second })
	waitFor(t, time.Minute, func() error { return second.Ready() })

	began := time.Now()
	r.putBig(t, rows, size, note)
	put := time.Since(began)
	pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	k := cdc.ShardKey{Datastore: r.store, Shard: 0}
	disturbed, want := 0, cellog.AddedID(small+rows)
	for final := false; !final; { // the other cluster, meanwhile
		other.putSome(t, rnd, 10)
		other.waitDrained(t, 30*time.Second)
		if quiet.Ready() != nil {
			disturbed++
		}
		pos, err := pub.Positions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		final = pos.Shards[k].Last >= want
		if c.said("starts anew") || time.Since(began) > time.Hour {
			t.Fatalf("final up to %d of %d; the tailer said:\n%s", pos.Shards[k].Last, want, c.output())
		}
	}
	took := time.Since(began)
	now := peak(t, c.cmd.Process.Pid)
	t.Logf("%d cells of %d bytes, put in %s, final after %s; peak memory %d MiB, before %d MiB", rows, size, put, took, now>>20, base>>20)
	if now-base > most {
		t.Errorf("the tailer took %d MiB more than before, want at most %d", (now-base)>>20, most>>20)
	}
	if s := second.Status(); s.State != "standing-by" || s.Cells > 0 || c.said("starts anew") {
		t.Errorf("the second tailer is %s and has published %d cells; the first said:\n%s", s.State, s.Cells, c.output())
	}
	if disturbed > 0 {
		t.Errorf("the other cluster's tailer was not ready %d times", disturbed)
	}
	other.mustBeClean(t)
	return r
}

// A transaction of any size goes through in bounded memory, of which the race
// detector takes several times as much: with it the order is tested alone.
func TestHugeTransactionGoesThroughInLittleMemory(t *testing.T) {
	rows, most := 600, 128<<20
	if harness.Race {
		rows, most = 60, 1<<30
	}
	for _, compressed := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "compressed"}[compressed], func(t *testing.T) {
			bigTransaction(t, compressed, rows, 900_000, most, true).mustBeClean(t)
		})
	}
}

// The same with millions of rows takes minutes: make soak-big.
func TestTransactionOfMillionsOfRows(t *testing.T) {
	rows, _ := strconv.Atoi(os.Getenv("CELLOG_TEST_BIG_ROWS"))
	if rows <= 0 {
		t.Skip("CELLOG_TEST_BIG_ROWS is not set: make soak-big sets it")
	}
	r := bigTransaction(t, false, rows, 20, 490<<20, false)
	topic := cellog.TopicName(r.prefix, r.store, "BASE")
	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	offsets, err := adm.Offsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var last cellog.Cell
	read := 0
	err = kafka.ReadRange(t.Context(), r.kafka, topic, 0, offsets[0].Start, offsets[0].End, func(f kafka.Fetched) error {
		c, err := record.Decode(f.Record)
		if err == nil && (c.Sequence != last.Sequence+1 || c.AddedID <= last.AddedID) {
			err = fmt.Errorf("sequence %d, added_id %d after %d, %d", c.Sequence, c.AddedID, last.Sequence, last.AddedID)
		}
		last = c
		read++
		return err
	})
	if err != nil || read < rows || int(last.AddedID) != r.total()+rows {
		t.Errorf("%d records, the last with added_id %d: %v", read, last.AddedID, err)
	}
}
