package tail

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
)

func (r *rig) mustBeClean(t testing.TB) {
	t.Helper()
	if rep := r.read(t); !rep.clean() || rep.records != r.total() {
		t.Fatalf("%+v of %d", rep, r.total())
	}
}

// purge takes all binlogs but the newest, which is empty, away.
func (r *rig) purge(t testing.TB) {
	t.Helper()
	r.exec(t, "FLUSH BINARY LOGS")
	q := "SHOW BINARY LOG STATUS"
	if r.node.Flavour() == mysqlserver.MariaDB {
		q = "SHOW MASTER STATUS"
	}
	rows, err := r.db.Query(q)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	cols, err := rows.Columns()
	if err != nil || !rows.Next() {
		t.Fatal("no binlog status", err)
	}
	dest := make([]any, len(cols))
	var file string
	dest[0] = &file
	for i := 1; i < len(dest); i++ {
		dest[i] = new(any)
	}
	if err := rows.Scan(dest...); err != nil {
		t.Fatal(err)
	}
	rows.Close()
	// MariaDB keeps a log that its last checkpoint still needs, for a moment.
	waitFor(t, 2*time.Minute, func() error {
		r.exec(t, "PURGE BINARY LOGS TO '"+file+"'")
		logs, err := r.binlogs(t)
		if err != nil || len(logs) != 1 {
			return fmt.Errorf("binlogs %v: %v", logs, err)
		}
		return nil
	})
}

// binlogs lists the server's binlogs.
func (r *rig) binlogs(t testing.TB) (names []string, err error) {
	rows, err := r.db.QueryContext(t.Context(), "SHOW BINARY LOGS")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	cols, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var name string
		dest := []any{&name}
		for len(dest) < len(cols) {
			dest = append(dest, new(any))
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

func TestPurgedBinlogHealsFromEntity(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 4)
	rnd := seeded(t)
	// Nothing was ever published, and the binlog has no beginning.
	r.putSome(t, rnd, 700)
	r.purge(t)
	tl := r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	// It was purged behind the last position.
	stop(t, tl)
	r.putSome(t, rnd, 1200)
	r.purge(t)
	r.putSome(t, rnd, 50)
	tl = r.run(t, nil)
	r.putSome(t, rnd, 200)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	if s := tl.Status(); len(s.Stopped) != 0 {
		t.Errorf("stopped: %v", s.Stopped)
	}
}

func TestTransactionTooBigForMemoryComesFromEntity(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	r.run(t, func(_ *cdc.Config, b *binlog.Config) { b.MaxTransactionBytes = 20_000 })
	for range 3 {
		if err := r.put(t.Context(), 1, 1500, rnd); err != nil {
			t.Fatal(err)
		}
		r.putSome(t, rnd, 20)
	}
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
}

func TestCompressedBinlog(t *testing.T) {
	node := mysqltest.Server(t)
	r := newRig(t, node, 2)
	rnd := seeded(t)
	off := "SET GLOBAL binlog_transaction_compression = OFF"
	on := "SET GLOBAL binlog_transaction_compression = ON"
	if node.Flavour() == mysqlserver.MariaDB {
		on, off = "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = OFF"
	}
	r.exec(t, on)
	t.Cleanup(func() { r.exec(t, off) })
	r.db.SetMaxIdleConns(0) // new sessions take the new setting
	r.putSome(t, rnd, 300)
	tl := r.run(t, nil)
	r.putSome(t, rnd, 300)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	waitFor(t, 5*time.Second, tl.Ready)
}

// Transactions of every other kind must not confuse the reader.
func TestOtherTransactionsBetween(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	tl := r.run(t, nil)
	db := r.database(0)
	other := []string{
		"CREATE TABLE " + db + ".entity2 (a INT PRIMARY KEY, b TEXT)",
		"INSERT INTO " + db + ".entity2 VALUES (1, 'x'), (2, 'y')",
		"UPDATE " + db + ".entity2 SET b = 'z'",
		"CREATE TABLE " + db + ".m (a INT) ENGINE = MyISAM",
		"INSERT INTO " + db + ".m VALUES (1)",
		"CREATE DATABASE " + r.store + "x; CREATE TABLE " + r.store + "x.entity (a INT)",
		"INSERT INTO " + r.store + "x.entity VALUES (1); DROP DATABASE " + r.store + "x",
		// A database that looks like a shard, of a datastore that nobody made.
		"CREATE DATABASE nobody_0001; CREATE TABLE nobody_0001.entity (a INT)",
		"INSERT INTO nobody_0001.entity VALUES (1); DROP DATABASE nobody_0001",
		"BEGIN; SAVEPOINT a; INSERT INTO " + db + ".entity2 VALUES (3, ''); ROLLBACK TO a; INSERT INTO " + db + ".entity2 VALUES (4, ''); COMMIT",
		"ALTER TABLE " + db + ".entity2 ADD COLUMN c INT",
		"DROP TABLE " + db + ".m",
		"FLUSH BINARY LOGS",
	}
	if r.node.Flavour() == mysqlserver.MySQL {
		other = append(other, "SET gtid_next = 'AUTOMATIC:blue'; INSERT INTO "+db+".entity2 VALUES (5, '', 1); SET gtid_next = 'AUTOMATIC'")
	}
	for _, q := range other {
		r.putSome(t, rnd, 10)
		r.exec(t, q)
	}
	r.putSome(t, rnd, 10)
	r.waitDrained(t, 2*time.Minute)
	stop(t, tl)
	r.putSome(t, rnd, 10)
	tl = r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
	if s := tl.Status(); len(s.Stopped) != 0 {
		t.Errorf("stopped: %v", s.Stopped)
	}
}

// waitStopped waits until exactly one shard is stopped, and returns why.
func waitStopped(t testing.TB, tl *cdc.Tailer, k cdc.ShardKey) error {
	t.Helper()
	var why error
	waitFor(t, 2*time.Minute, func() error {
		s := tl.Status()
		if why = s.Stopped[k]; why == nil || len(s.Stopped) != 1 {
			return fmt.Errorf("stopped: %v", s.Stopped)
		}
		return nil
	})
	return why
}

// A broken rule stops one shard, with a clear error, also after a restart; the
// other goes on.
func TestBrokenRulesStopTheirShardOnly(t *testing.T) {
	insert := func(r *rig, id int, column string) string {
		return fmt.Sprintf("INSERT INTO %s.entity SELECT %d, epoch, row_key, '%s', ref_key + 1, body, created_at, NULL FROM %s.entity WHERE added_id = 1", r.database(1), id, column, r.database(1))
	}
	for _, c := range []struct {
		name, want string
		sql        func(r *rig) string
	}{
		{"update", "cells are immutable", func(r *rig) string {
			return "UPDATE " + r.database(1) + ".entity SET ref_key = ref_key + 1 WHERE added_id = 3"
		}},
		{"delete", "cells are immutable", func(r *rig) string {
			return "DELETE FROM " + r.database(1) + ".entity WHERE added_id = 2"
		}},
		{"hole", "must come next", func(r *rig) string { return insert(r, 43, "BASE") }},
		{"column name", "want a letter", func(r *rig) string { return insert(r, 41, "_all") }},
		{"damaged body", "cannot be read", func(r *rig) string {
			return strings.Replace(insert(r, 41, "BASE"), "body,", "'rubbish',", 1)
		}},
		{"lower epoch", "epoch", func(r *rig) string { return strings.Replace(insert(r, 41, "BASE"), "epoch,", "0,", 1) }},
		{"partial image", "binlog_row_image", func(r *rig) string {
			return "SET SESSION binlog_row_image = 'MINIMAL'; UPDATE " + r.database(1) + ".shard_log SET last_added_id = 41; " +
				"INSERT INTO " + r.database(1) + ".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) SELECT 41, epoch, row_key, column_name, ref_key + 1, body, created_at FROM " + r.database(1) + ".entity WHERE added_id = 1; SET SESSION binlog_row_image = 'FULL'"
		}},
		{"layout", "columns", func(r *rig) string {
			return "ALTER TABLE " + r.database(1) + ".entity ADD COLUMN more INT; INSERT INTO " + r.database(1) + ".entity SELECT 41, epoch, row_key, column_name, ref_key + 1, body, created_at, NULL, 1 FROM " + r.database(1) + ".entity WHERE added_id = 1"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, mysqltest.Server(t), 2)
			rnd := seeded(t)
			for range 2 {
				if err := errors.Join(r.put(t.Context(), 0, 20, rnd), r.put(t.Context(), 1, 20, rnd), r.put(t.Context(), 1, 20, rnd)); err != nil {
					t.Fatal(err)
				}
				if c.name != "" {
					break
				}
			}
			tl := r.run(t, func(c *cdc.Config, _ *binlog.Config) { c.FillWait = 200 * time.Millisecond })
			r.waitDrained(t, 2*time.Minute)
			r.exec(t, c.sql(r))
			k := cdc.ShardKey{Datastore: r.store, Shard: 1}
			why := waitStopped(t, tl, k)
			if !errors.Is(why, cdc.ErrShard) || !strings.Contains(why.Error(), c.want) {
				t.Errorf("stopped with: %v", why)
			}
			if strings.Contains(why.Error(), "fare") {
				t.Errorf("the error shows a body: %v", why)
			}
			if err := r.put(t.Context(), 0, 5, rnd); err != nil {
				t.Fatal(err)
			}
			r.waitDrained(t, 2*time.Minute)
			stop(t, tl)
			tl = r.run(t, func(c *cdc.Config, _ *binlog.Config) { c.FillWait = 200 * time.Millisecond })
			waitStopped(t, tl, k)
			if err := r.put(t.Context(), 0, 5, rnd); err != nil {
				t.Fatal(err)
			}
			r.waitDrained(t, 2*time.Minute)
			r.mustBeClean(t)
		})
	}
}

func TestTopicThatLostItsTailStopsItsShards(t *testing.T) {
	for _, how := range []string{"deleted", "recreated"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, mysqltest.Server(t), 2)
			rnd := seeded(t)
			columns := []string{"BASE", "STATUS"}
			for i, col := range columns { // a column per shard
				if err := r.putColumn(t.Context(), cellog.ShardID(i), col, 20, rnd); err != nil {
					t.Fatal(err)
				}
			}
			tl := r.run(t, nil)
			r.waitDrained(t, 2*time.Minute)
			stop(t, tl)
			adm, err := kafka.NewAdmin(r.kafka)
			if err != nil {
				t.Fatal(err)
			}
			defer adm.Close()
			topic := cellog.TopicName(r.prefix, r.store, "STATUS")
			if err := adm.DeleteTopic(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
			if how == "recreated" {
				waitFor(t, 2*time.Minute, func() error {
					_, err := adm.EnsureTopic(t.Context(), kafka.ColumnTopic(topic, 2, body.MaxBytes))
					return err
				})
			}
			tl = r.run(t, nil)
			why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
			if !errors.Is(why, cdc.ErrTailLost) || !strings.Contains(why.Error(), "cellog tailer repair") {
				t.Errorf("stopped with: %v", why)
			}
			if err := errors.Join(r.putColumn(t.Context(), 0, "BASE", 20, rnd), r.putColumn(t.Context(), 1, "STATUS", 5, rnd)); err != nil {
				t.Fatal(err)
			}
			waitFor(t, 2*time.Minute, func() error {
				if rep := r.read(t); rep.records != 40 {
					return fmt.Errorf("%+v", rep)
				}
				return nil
			})
			// What the error says to do mends it.
			stop(t, tl)
			pub, err := publish.New(publish.Config{Kafka: r.kafka, Cluster: r.cluster, Prefix: r.prefix})
			if err != nil {
				t.Fatal(err)
			}
			defer pub.Close()
			for _, want := range []int{20, 0} {
				done, err := pub.Repair(t.Context(), &cdc.Datastore{Name: r.store, Shards: 2, Partitions: 2}, 1, entities{r.db})
				if err != nil || done[topic] != want || len(done) > 1 {
					t.Fatalf("repaired %v, %v", done, err)
				}
			}
			r.run(t, nil)
			r.waitDrained(t, 2*time.Minute)
			r.mustBeClean(t)
		})
	}
}

// kadmin is a plain admin client: it does what an operator does.
func (r *rig) kadmin(t testing.TB) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Addrs...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

func TestTopicThatDoesNotFitStopsItsShards(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	adm := r.kadmin(t)
	topic := cellog.TopicName(r.prefix, r.store, "NOTES")
	day := "86400000"
	if _, err := adm.CreateTopic(t.Context(), 2, 1, map[string]*string{"retention.ms": &day}, topic); err != nil {
		t.Fatal(err)
	}
	tl := r.run(t, nil)
	if err := errors.Join(r.putColumn(t.Context(), 0, "BASE", 10, rnd), r.putColumn(t.Context(), 1, "NOTES", 10, rnd)); err != nil {
		t.Fatal(err)
	}
	why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
	if !errors.Is(why, kafka.ErrTopicMismatch) || !strings.Contains(why.Error(), "--add-config retention.ms=-1") {
		t.Errorf("stopped with: %v", why)
	}
	// The command mends it, and a restart goes on.
	stop(t, tl)
	forever := "-1"
	if _, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &forever}}, topic); err != nil {
		t.Fatal(err)
	}
	r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	r.mustBeClean(t)
}

func TestRefusedRecordStopsItsShardOnly(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	adm := r.kadmin(t)
	small, forever := "60000", "-1"
	topic := cellog.TopicName(r.prefix, r.store, "BASE")
	if _, err := adm.CreateTopic(t.Context(), 2, 1, map[string]*string{"retention.ms": &forever, "max.message.bytes": &small}, topic); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.putColumn(t.Context(), 1, "BASE", 5, rnd), r.putBody(t.Context(), 1, randomText(rnd, 200_000), rnd),
		r.putColumn(t.Context(), 1, "BASE", 5, rnd), r.putColumn(t.Context(), 0, "BASE", 20, rnd)); err != nil {
		t.Fatal(err)
	}
	tl := r.run(t, nil)
	why := waitStopped(t, tl, cdc.ShardKey{Datastore: r.store, Shard: 1})
	if !errors.Is(why, cdc.ErrRefused) || !strings.Contains(why.Error(), "added_id 6") {
		t.Errorf("stopped with: %v", why)
	}
	if err := r.putColumn(t.Context(), 0, "BASE", 20, rnd); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 2*time.Minute, func() error {
		if rep := r.read(t); rep.records != 45 || rep.duplicates+rep.holes+rep.disordered+rep.differ > 0 {
			return fmt.Errorf("%+v", rep)
		}
		return nil
	})
}

func TestBrokerRestart(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 2)
	rnd := seeded(t)
	r.run(t, nil)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := r.write(ctx, t, rnd, 5*time.Millisecond)
		n := r.total()
		waitFor(t, 2*time.Minute, func() error {
			if r.total() < n+100 {
				return errors.New("few cells")
			}
			return nil
		})
		r.broker.Restart(t)
		cancel()
		<-done
		r.waitDrained(t, 60*time.Second)
		r.mustBeClean(t)
	}
}

func TestServerKilledWhileItIsRead(t *testing.T) {
	r := newRig(t, mysqltest.Start(t), 2)
	rnd := seeded(t)
	tl := r.run(t, nil)
	for range 2 {
		r.putSome(t, rnd, 400)
		r.node.Kill()
		r.node.Restart(t)
		r.exec(t, "SET GLOBAL read_only = 0")
		r.putSome(t, rnd, 50)
		r.waitDrained(t, 60*time.Second)
		r.mustBeClean(t)
	}
	waitFor(t, 2*time.Minute, tl.Ready)
}

func TestNodesTakeOverFromEachOther(t *testing.T) {
	set := mysqltest.Cluster(t, 2)
	r := newRig(t, set.Master, 2)
	rnd := seeded(t)
	var down string
	tl := r.run(t, func(c *cdc.Config, b *binlog.Config) {
		nodes := []cdc.Node{}
		for i, n := range append([]*mysqltest.Node{set.Master}, set.Minions...) {
			bc := *b
			bc.Addr = n.Addr()
			src, err := binlog.New(bc)
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, cdc.Node{Name: fmt.Sprintf("n%d", i+1), Master: i == 0, Source: src, Entities: entities{n.As(t, mysqltest.Accounts.Tailer, "")}})
		}
		c.Nodes = func(context.Context) ([]cdc.Node, error) { return nodes, nil }
	})
	r.putSome(t, rnd, 200)
	r.waitDrained(t, 2*time.Minute)
	if down = tl.Status().Node; down == "n1" {
		t.Fatal("the master is tailed although there are minions")
	}
	r.putSome(t, rnd, 100)
	set.Minions[int(down[1]-'2')].Kill()
	r.putSome(t, rnd, 100)
	r.waitDrained(t, 2*time.Minute)
	if now := tl.Status().Node; now == down || now == "n1" {
		t.Errorf("tails %s after %s went down", now, down)
	}
	r.mustBeClean(t)
	// The last minion gone, the cluster stalls rather than tail its master.
	for _, m := range set.Minions {
		m.Kill()
	}
	waitFor(t, 2*time.Minute, func() error {
		if err := tl.Ready(); err == nil {
			return errors.New("ready without a minion")
		}
		if s := tl.Status(); !errors.Is(s.Err, cdc.ErrNoNode) {
			return fmt.Errorf("session ended with %v", s.Err)
		}
		return nil
	})
}
