package tail

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// account is how a tailer logs in to the server.
type account struct{ Addr, User, Password string }

func openDB(a account) (*sql.DB, error) {
	return mysqlconn.Open(mysqlconn.Config{Addr: a.Addr, User: a.User, Password: a.Password, MaxOpen: 16})
}

// entities reads a server's tables as the joining code does.
type entities struct{ db *sql.DB }

func (e entities) Heads(ctx context.Context, f func(cdc.Head) error) error {
	heads, err := mysql.Heads(ctx, e.db)
	if err != nil {
		return err
	}
	for _, h := range heads {
		if err := f(cdc.Head{Shard: cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}, Epoch: h.Epoch, Term: h.Term, Last: h.Last}); err != nil {
			return err
		}
	}
	return nil
}

func (e entities) ReadEntity(ctx context.Context, datastore string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	return mysql.ReadEntity(ctx, e.db, datastore, shard, after, limit)
}

func (e entities) ScanEntity(ctx context.Context, k cdc.ShardKey, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error {
	err := mysql.ScanEntity(ctx, e.db, k.Datastore, k.Shard, after, upTo, limit, f)
	if errors.Is(err, storage.ErrDamaged) {
		return fmt.Errorf("%w: %w", cdc.ErrShard, err)
	}
	return err
}

func (e entities) CellsAt(ctx context.Context, at map[cdc.ShardKey]cellog.AddedID) (map[cdc.ShardKey]cellog.Cell, error) {
	var places []mysql.Place
	for k, id := range at {
		places = append(places, mysql.Place{Datastore: k.Datastore, Shard: k.Shard, AddedID: id})
	}
	out := make(map[cdc.ShardKey]cellog.Cell)
	err := mysql.CellsAt(ctx, e.db, places, func(p mysql.Place, c cellog.Cell) {
		out[cdc.ShardKey{Datastore: p.Datastore, Shard: p.Shard}] = c
	})
	return out, err
}

func (e entities) Datastore(ctx context.Context, name string) (shards, partitions int, ok bool, err error) {
	err = e.db.QueryRowContext(ctx, "SELECT shards, partitions FROM cellog_meta.datastores WHERE name = ?", name).Scan(&shards, &partitions)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, false, nil
	}
	return shards, partitions, err == nil, err
}

// rig is a server with one datastore, and a broker.
type rig struct {
	node    *mysqltest.Node
	broker  *kafkatest.Broker
	account account // the tailer's
	db      *sql.DB
	kafka   kafka.Config
	cluster string
	prefix  string
	store   string
	shards  int
	// repeatable writes under REPEATABLE READ, as binlog_format=STATEMENT demands.
	repeatable bool

	mu   sync.Mutex
	sent map[cdc.ShardKey][]cellog.Cell // what the writers stored, in order
}

const beatEvery = 50 * time.Millisecond

// tailer makes a tailer of the rig's cluster; change may alter its
// configuration.
func (r *rig) tailer(t testing.TB, change func(*cdc.Config, *binlog.Config)) *cdc.Tailer {
	t.Helper()
	tl, closer, err := buildTailer(r.spec(), slog.New(slog.NewTextHandler(logWriter{t}, nil)), change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closer)
	return tl
}

// run starts a tailer and stops it with the test.
func (r *rig) run(t testing.TB, change func(*cdc.Config, *binlog.Config)) *cdc.Tailer {
	t.Helper()
	tl := r.tailer(t, change)
	if err := tl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, tl) })
	return tl
}

func stop(t testing.TB, tl *cdc.Tailer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := tl.Stop(ctx); err != nil {
		t.Error("stop the tailer:", err)
	}
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (r *rig) firstOpen(t testing.TB) {
	t.Helper()
	pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	for i, want := range []bool{true, false} {
		written, err := pub.WriteFirstOpen(t.Context(), "n1", "uuid-of-n1")
		if err != nil || written != want {
			t.Fatalf("WriteFirstOpen, call %d: written %v, %v", i+1, written, err)
		}
	}
}

var columns = []string{"BASE", "STATUS", "NOTES"}

// put stores n cells in one transaction, as section 3 of the design does.
func (r *rig) put(ctx context.Context, shard cellog.ShardID, n int, rnd *rand.Rand) error {
	cells := make([]cellog.Cell, n)
	for i := range cells {
		cells[i] = r.cell(shard, columns[rnd.IntN(len(columns))], rnd)
	}
	return r.commit(ctx, shard, cells)
}

// putColumn is put with cells of one column.
func (r *rig) putColumn(ctx context.Context, shard cellog.ShardID, column string, n int, rnd *rand.Rand) error {
	cells := make([]cellog.Cell, n)
	for i := range cells {
		cells[i] = r.cell(shard, column, rnd)
	}
	return r.commit(ctx, shard, cells)
}

// putBody stores one BASE cell with a text in its body.
func (r *rig) putBody(ctx context.Context, shard cellog.ShardID, text string, rnd *rand.Rand) error {
	c := r.cell(shard, "BASE", rnd)
	c.Body = fmt.Appendf(nil, `{"text":%q}`, text)
	return r.commit(ctx, shard, []cellog.Cell{c})
}

// randomText returns text that does not compress well.
func randomText(rnd *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[rnd.IntN(len(letters))]
	}
	return string(b)
}

func (r *rig) cell(shard cellog.ShardID, column string, rnd *rand.Rand) (c cellog.Cell) {
	for {
		for j := range c.Row {
			c.Row[j] = byte(rnd.Uint32())
		}
		if rnd.IntN(4) == 0 {
			c.Row[15], c.Row[14] = 0, 0 // the server cuts trailing zeros off
		}
		if cellog.ShardOf(c.Row, r.shards) == shard {
			break
		}
	}
	c.Datastore, c.Shard, c.Column = r.store, shard, column
	c.Ref = cellog.RefKey(rnd.Int64() - rnd.Int64())
	c.Body = fmt.Appendf(nil, `{"n":%d,"fare":%d.%02d,"who":"%s","note":%q}`, rnd.Int64(), rnd.IntN(100), rnd.IntN(100), uuid.UUID(c.Row), strings.Repeat("é", rnd.IntN(200)))
	if rnd.IntN(3) == 0 {
		c.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	}
	return c
}

// commit writes cells; it sets their place.
func (r *rig) commit(ctx context.Context, shard cellog.ShardID, cells []cellog.Cell) error {
	db := "`" + cellog.DatabaseName(r.store, shard) + "`"
	level := sql.LevelReadCommitted
	if r.repeatable {
		level = sql.LevelRepeatableRead
	}
	tx, err := r.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "UPDATE "+db+".shard_log SET last_added_id = last_added_id + ?, last_created_at = GREATEST(last_created_at, UTC_TIMESTAMP(6)) WHERE id = 1 AND state = 'open'", len(cells)); err != nil {
		return err
	}
	var last cellog.AddedID
	var epoch cellog.Epoch
	var at time.Time
	if err := tx.QueryRowContext(ctx, "SELECT last_added_id, epoch, last_created_at FROM "+db+".shard_log WHERE id = 1").Scan(&last, &epoch, &at); err != nil {
		return err
	}
	q := strings.Builder{}
	q.WriteString("INSERT INTO " + db + ".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at, traceparent) VALUES ")
	var args []any
	for i := range cells {
		c := &cells[i]
		c.AddedID, c.Epoch, c.CreatedAt = last-cellog.AddedID(len(cells)-1-i), epoch, at
		stored, err := body.Encode(nil, c.Body, body.Limits{})
		if err != nil {
			return err
		}
		if i > 0 {
			q.WriteByte(',')
		}
		q.WriteString("(?,?,?,?,?,?,?,?)")
		var trace any
		if c.TraceParent != "" {
			trace = c.TraceParent
		}
		args = append(args, int64(c.AddedID), int32(c.Epoch), c.Row[:], c.Column, int64(c.Ref), stored, c.CreatedAt, trace)
	}
	if _, err := tx.ExecContext(ctx, q.String(), args...); err != nil {
		return err
	}
	// The lock of shard_log is held until the commit, so the order of sent is
	// the shard's order, if sent is locked before it.
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := tx.Commit(); err != nil {
		return err
	}
	if r.sent == nil {
		r.sent = make(map[cdc.ShardKey][]cellog.Cell)
	}
	k := cdc.ShardKey{Datastore: r.store, Shard: shard}
	r.sent[k] = append(r.sent[k], cells...)
	return nil
}

// putSome writes n cells in small transactions over all shards.
func (r *rig) putSome(t testing.TB, rnd *rand.Rand, n int) {
	t.Helper()
	for n > 0 {
		k := min(n, 1+rnd.IntN(8))
		if err := r.put(t.Context(), cellog.ShardID(rnd.IntN(r.shards)), k, rnd); err != nil {
			t.Fatal(err)
		}
		n -= k
	}
}

func (r *rig) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, c := range r.sent {
		n += len(c)
	}
	return n
}

// report is what a reader of committed records saw.
type report struct {
	records, missing, duplicates, disordered, holes, differ int
	first                                                   string
}

func (r report) clean() bool {
	return r.missing+r.duplicates+r.disordered+r.holes+r.differ == 0
}

func (r *report) note(format string, args ...any) {
	if r.first == "" {
		r.first = fmt.Sprintf(format, args...)
	}
}

// read compares all committed records of all columns' topics with what was
// stored. Shards in skip are left out.
func (r *rig) read(t testing.TB) report {
	t.Helper()
	var rep report
	adm, err := kafka.NewAdmin(r.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	type colKey struct {
		shard  cellog.ShardID
		column string
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := make(map[colKey]cellog.Sequence)
	seen := make(map[cellog.Key]bool)
	for _, col := range columns {
		topic := cellog.TopicName(r.prefix, r.store, col)
		offsets, err := adm.Offsets(t.Context(), topic)
		if errors.Is(err, kafka.ErrUnknownTopic) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for p, o := range offsets {
			err := kafka.ReadRange(t.Context(), r.kafka, topic, p, o.Start, o.End, func(f kafka.Fetched) error {
				rep.records++
				c, err := record.Decode(f.Record)
				if err != nil {
					return err
				}
				if cellog.PartitionOf(c.Shard, len(offsets)) != p || c.Column != col {
					rep.disordered++
					rep.note("%s in %s, partition %d", c.ID(), topic, p)
				}
				if seen[c.Key] {
					rep.duplicates++
					rep.note("%s twice", c.ID())
					return nil
				}
				seen[c.Key] = true
				k := colKey{c.Shard, col}
				switch {
				case c.Sequence <= last[k]:
					rep.disordered++
					rep.note("%s: sequence %d after %d", c.ID(), c.Sequence, last[k])
				case c.Sequence > last[k]+1:
					rep.holes++
					rep.note("%s: sequence %d after %d", c.ID(), c.Sequence, last[k])
				}
				last[k] = c.Sequence
				sent := r.sent[cdc.ShardKey{Datastore: r.store, Shard: c.Shard}]
				if c.AddedID < 1 || int(c.AddedID) > len(sent) {
					rep.differ++
					rep.note("%s was never stored", c.ID())
					return nil
				}
				want := sent[c.AddedID-1]
				if want.Key != c.Key || want.AddedID != c.AddedID || want.Epoch != c.Epoch || string(want.Body) != string(c.Body) ||
					!want.CreatedAt.Equal(c.CreatedAt) || want.TraceParent != c.TraceParent {
					rep.differ++
					rep.note("%s: have %s %s, want %s %s", c.ID(), c.Key, c.Body, want.Key, want.Body)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, cells := range r.sent {
		for i := range cells {
			if !seen[cells[i].Key] {
				rep.missing++
				rep.note("%s is missing", cells[i].ID())
			}
		}
	}
	return rep
}

// waitFor calls f until it returns nil, or fails the test with its last error.
func waitFor(t testing.TB, most time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(most)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", most, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// waitDrained waits until the positions say that all that was stored is final.
func (r *rig) waitDrained(t testing.TB, most time.Duration) {
	t.Helper()
	pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	waitFor(t, most, func() error {
		pos, err := pub.Positions(t.Context())
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for k, cells := range r.sent {
			if got := pos.Shards[k].Last; int(got) != len(cells) {
				return fmt.Errorf("shard %s: final up to %d of %d", k, got, len(cells))
			}
		}
		return nil
	})
}

func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
