package table

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
)

// topics writes cells into column topics as a tailer does.
type topics struct {
	t      testing.TB
	prefix string
	cfg    kafka.Config
	prod   *kafka.Producer
	last   [shards]cellog.AddedID
	seq    map[string]cellog.Sequence
	ends   map[string]int64 // records per topic/partition
	cells  []cellog.Cell
}

func newStream(t testing.TB) *topics {
	t.Helper()
	s := &topics{t: t, prefix: kafkatest.Prefix(t), cfg: kafka.Config{Addrs: kafkatest.Start(t).Addrs()}, seq: map[string]cellog.Sequence{}, ends: map[string]int64{}}
	var err error
	if s.prod, err = kafka.OpenProducer(context.Background(), kafka.ProducerConfig{Config: s.cfg, TransactionalID: s.prefix + "tailer"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.prod.Close)
	return s
}

func (s *topics) topic(column string) {
	s.t.Helper()
	admin, err := kafka.NewAdmin(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.EnsureTopic(context.Background(), kafka.ColumnTopic(cellog.TopicName(s.prefix, "trips", column), shards, 1<<20)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *topics) put(row uuid.UUID, column string, ref cellog.RefKey, body string) {
	s.t.Helper()
	if err := s.prod.Begin(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	c := cell(row, column, ref, 0, body)
	s.last[c.Shard]++
	c.AddedID = s.last[c.Shard]
	key := fmt.Sprint(c.Shard, column)
	s.seq[key]++
	c.Sequence = s.seq[key]
	c.CreatedAt = time.Now().UTC().Truncate(time.Microsecond)
	topic := cellog.TopicName(s.prefix, "trips", column)
	if err := s.prod.Send(context.Background(), kafka.NewMessage(topic, cellog.PartitionOf(c.Shard, shards), record.Encode(&c))); err != nil {
		s.t.Fatal(err)
	}
	s.cells = append(s.cells, c)
}

func (s *topics) flush() {
	s.t.Helper()
	if err := s.prod.Commit(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// run runs an indexer until stop is called.
func (s *topics) run(tables indexer.Tables, indexes ...*indexer.Index) (stop func()) {
	s.t.Helper()
	x, err := indexer.New(indexer.Config{Kafka: s.cfg, TopicPrefix: s.prefix, Tables: tables, Indexes: indexes, SessionTimeout: 6 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("indexer: %v", err)
		}
	})
}

// waitClean waits until the index has all cells and nothing else.
func (s *topics) waitClean(tables *Tables, ix *indexer.Index) {
	s.t.Helper()
	got, err := indexer.Verify(context.Background(), indexer.VerifyConfig{Index: ix, Tables: tables, Cells: cellsOf(s.cells), Wait: 60 * time.Second,
		Detail: func(d string) { s.t.Log(d) }})
	if err != nil {
		s.t.Fatal(err)
	}
	if got.Missing+got.Stale+got.Extra > 0 {
		s.t.Fatalf("%+v", got)
	}
}

// From topics to tables, with a topic that appears late, and byte for byte the
// same after everything was read again from zero.
func TestStreamToTables(t *testing.T) {
	w := newWorld(t, shards, 2)
	ix := twoColumns(t, "stream")
	tables := newTables(t, w)
	s := newStream(t)
	s.topic("BASE")
	stop := s.run(tables, ix)
	defer stop()
	for i := range 300 {
		s.put(uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i % 50)}), "BASE", cellog.RefKey(i), fmt.Sprintf(`{"driver":"%d","fare":%d}`, i%7, i))
	}
	s.flush()
	waitTables(t, tables, ix)
	s.waitClean(tables, ix)
	s.topic("STATUS")
	for i := range 100 {
		s.put(uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i % 60)}), "STATUS", cellog.RefKey(-i), fmt.Sprintf(`{"status":%d}`, i))
	}
	s.flush()
	s.waitClean(tables, ix)
	waitFor(t, func() error {
		if building, err := tables.Ensure(t.Context(), ix); building || err != nil {
			return fmt.Errorf("building %v, %v", building, err)
		}
		return nil
	})
	stop()
	want := dump(t, w, ix)

	// The progress says that nothing is there: all is read again.
	for _, db := range w.dbs {
		if _, err := db.Exec("UPDATE cellog_meta.index_progress SET next_offset = 0"); err != nil {
			t.Fatal(err)
		}
	}
	again := &counting{Tables: newTables(t, w)}
	stop = s.run(again, ix)
	defer stop()
	waitFor(t, func() error {
		again.mu.Lock()
		defer again.mu.Unlock()
		if len(again.rows[0]) < 50 || len(again.rows[1]) < 60 {
			return fmt.Errorf("read again: %d and %d rows", len(again.rows[0]), len(again.rows[1]))
		}
		return nil
	})
	s.waitClean(tables, ix)
	stop()
	if got := dump(t, w, ix); got != want {
		t.Errorf("after reading from zero\n%s\nbefore\n%s", got, want)
	}
}

// counting notes the rows that come to the tables, by column.
type counting struct {
	*Tables
	mu   sync.Mutex
	rows [2]map[uuid.UUID]bool
}

func (c *counting) Apply(ctx context.Context, b indexer.Batch) error {
	err := c.Tables.Apply(ctx, b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range b.Parts {
		for _, r := range p.Rows {
			for i, n := range r.State.Columns {
				if c.rows[i] == nil {
					c.rows[i] = map[uuid.UUID]bool{}
				}
				if n.Set {
					c.rows[i][r.Key] = true
				}
			}
		}
	}
	return nil
}

// Indexers stop and start, fail between any two steps and get in each other's
// way while cells come in; in the end every entry is right.
func TestStreamWithFailures(t *testing.T) {
	w := newWorld(t, shards, 2)
	ix := twoColumns(t, "chaos")
	s := newStream(t)
	s.topic("BASE")
	s.topic("STATUS")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	var mu sync.Mutex
	failures := rand.New(rand.NewPCG(seed, 4))
	failpoint.Set(func(string) bool {
		mu.Lock()
		defer mu.Unlock()
		return failures.IntN(20) == 0
	})
	defer failpoint.Set(nil)
	running := make([]func(), 2)
	for round := range 12 {
		i := rnd.IntN(2)
		if running[i] != nil {
			running[i]()
			running[i] = nil
		} else {
			running[i] = s.run(newTables(t, w), ix)
		}
		for range 40 {
			row := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(rnd.IntN(20))})
			if rnd.IntN(3) > 0 {
				s.put(row, "BASE", cellog.RefKey(len(s.cells)), fmt.Sprintf(`{"driver":"%d","fare":%d}`, rnd.IntN(6), round))
			} else {
				s.put(row, "STATUS", cellog.RefKey(len(s.cells)), fmt.Sprintf(`{"status":%d}`, round))
			}
		}
		s.flush()
	}
	for i := range running {
		if running[i] == nil {
			running[i] = s.run(newTables(t, w), ix)
		}
		defer running[i]()
	}
	waitTables(t, newTables(t, w), ix)
	s.waitClean(newTables(t, w), ix)
	for i := range running {
		running[i]()
	}
	for sh := range w.shards {
		var n int
		if err := w.db(sh).QueryRow("SELECT COUNT(*) FROM " + homeTable(ix, cellog.ShardID(sh)) + " WHERE removals IS NOT NULL").Scan(&n); err != nil || n > 0 {
			t.Errorf("shard %d: %d home rows have removals left, %v", sh, n, err)
		}
	}
}

// A server is killed, with kill -9, again and again while cells come in.
func TestServerIsKilled(t *testing.T) {
	w := newWorld(t, shards, 2)
	ix := twoColumns(t, "killed")
	s := newStream(t)
	s.topic("BASE")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 5))
	tables := newTables(t, w)
	stop := s.run(tables, ix)
	defer stop()
	waitTables(t, tables, ix)
	victim := w.nodes[1] // the first is shared with other tests
	for range 3 {
		for i := range 10 {
			for range 40 {
				row := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(rnd.IntN(50))})
				s.put(row, "BASE", cellog.RefKey(len(s.cells)), fmt.Sprintf(`{"driver":"%d","fare":1}`, rnd.IntN(6)))
			}
			s.flush()
			if i == 5 {
				victim.Kill()
			}
		}
		victim.Restart(t)
		// The pool of the node's root died with it.
		if _, err := w.admin[1].Exec("SET GLOBAL read_only = OFF"); err != nil {
			t.Fatal(err)
		}
	}
	s.waitClean(tables, ix)
}

// waitTables waits until an indexer has made the index's tables.
func waitTables(t testing.TB, tables *Tables, ix *indexer.Index) {
	t.Helper()
	waitFor(t, func() error {
		for s := range cellog.ShardID(shards) {
			if _, err := tables.ScanHomes(context.Background(), ix, s, nil, 1); err != nil {
				return err
			}
		}
		return nil
	})
}

// waitFor polls until fn returns nil, at most a minute.
func waitFor(t testing.TB, fn func() error) {
	t.Helper()
	err := errors.New("never tried")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = fn(); err == nil {
			return
		}
	}
	t.Fatalf("gave up: %v", err)
}
