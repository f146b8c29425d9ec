package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/acks"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/tests/harness"
)

// exec runs statements on a node, in one session.
func (d *dev) exec(t *testing.T, node string, statements ...string) {
	t.Helper()
	addr, user, password, _ := d.node(t, node)
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: addr, User: user, Password: password, MaxOpen: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %s: %v", node, q, err)
		}
	}
}

// inShard returns a new cell of a shard.
func inShard(shard cellog.ShardID, text string) acked {
	for {
		if a := (acked{key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, body: text}); cellog.ShardOf(a.key.Row, shards) == shard {
			return a
		}
	}
}

// A master commits two cells that it replicates to nobody and answers to nobody,
// and is replaced. When it is back, a rejoin lists them and changes nothing; then
// it does with them what it is told, and the node follows.
func TestOldMasterWithErrantCells(t *testing.T) {
	d := newDev(t, "--auto-promote", "0s")
	d.start(t)
	c := d.client(t)
	stop := "STOP REPLICA"
	if harness.Flavour() == "mariadb" {
		stop = "STOP SLAVE"
	}
	var all []acked
	put := func(a acked) {
		t.Helper()
		harness.WaitFor(t, time.Minute, func() error { // one answered 202 may lose to another body
			res, err := c.Put(t.Context(), "trips", cellog.Put{Key: a.key, Body: []byte(a.body)})
			if err == nil && res.Buffered {
				err = errors.New("answered 202")
			}
			return err
		})
		all = append(all, a)
	}
	cluster := func() []string { return []string{"--config", d.config(t)} }
	// doctor runs it, demands its exit code, and returns what it finds bad.
	doctor := func(want int) string {
		t.Helper()
		stdout, stderr, code := harness.Try(t, append([]string{"doctor", "--format", "json"}, cluster()...)...)
		var found []struct{ Where, Check, Level, Found, Why, Fix string }
		if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != want {
			t.Errorf("doctor: exit %d, want %d: %s%s (%v)", code, want, stdout, stderr, err)
		}
		var bad []string
		for _, f := range found {
			if f.Level == "bad" {
				bad = append(bad, f.Where+": "+f.Check+" is "+f.Found+": "+f.Fix)
			}
		}
		return strings.Join(bad, "\n")
	}
	if bad := doctor(0); bad != "" {
		t.Error(bad)
	}
	for i, errant := range []string{"drop", "put"} {
		name, shard := []string{"c1", "c2"}[i], cellog.ShardID(i)
		old, next, database := name+"a", name+"b", cellog.DatabaseName("trips", shard)
		put(inShard(shard, `{"total":1}`))
		harness.WaitFor(t, time.Minute, func() error { // both have all, and follow
			if out, code := harness.Cellog(t, "verify", "trips", "--config", d.config(t)); code != 0 {
				return errors.New(out)
			}
			if out, _, code := harness.Try(t, append([]string{"cluster", "list", name}, cluster()...)...); code != 0 || strings.Count(out, "minion") != 1 {
				return errors.New(out)
			}
			return nil
		})
		d.exec(t, next, stop)
		alone, rival := inShard(shard, `{"total":2}`), inShard(shard, `{"total":3}`)
		for _, a := range []acked{alone, rival} {
			stored, err := body.Encode(nil, []byte(a.body), body.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			d.exec(t, old, "START TRANSACTION", "UPDATE "+database+".shard_log SET last_added_id = last_added_id + 1",
				fmt.Sprintf("INSERT INTO "+database+".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at) SELECT last_added_id, epoch, x'%x', 'BASE', 1, x'%x', NOW(6) FROM "+database+".shard_log", a.key.Row[:], stored), "COMMIT")
		}
		_, _, _, pid := d.node(t, old)
		if _, err := harness.Freeze(pid); err != nil {
			t.Fatal(err)
		}
		out, code := harness.Cellog(t, append([]string{"cluster", "promote", name}, cluster()...)...)
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if code != 0 || !strings.Contains(out, next+" is the master of "+name) {
			t.Fatalf("promote: exit %d: %s", code, out)
		}
		stands := acked{rival.key, `{"total":4}`}
		put(stands)
		harness.WaitFor(t, time.Minute, func() error { // it was told that it is no master
			if out, _, _ := harness.Try(t, append([]string{"cluster", "list", name}, cluster()...)...); strings.Count(out, "spare")+strings.Count(out, "minion") != 1 {
				return errors.New(out)
			}
			return nil
		})
		if bad := doctor(3); !strings.Contains(bad, old+": replication is not a replica") || strings.Contains(bad, next) {
			t.Errorf("the old master is back: %s", bad)
		}
		// rejoin runs the command and demands its exit code.
		rejoin := func(want int, args ...string) (stdout, stderr string) {
			t.Helper()
			stdout, stderr, code := harness.Try(t, append(append([]string{"cluster", "rejoin"}, args...), cluster()...)...)
			if code != want {
				t.Fatalf("rejoin %v: exit %d, want %d: %s%s", args, code, want, stdout, stderr)
			}
			return stdout, stderr
		}
		has := func(node string, a acked) int {
			t.Helper()
			addr, user, password, _ := d.node(t, node)
			db, err := mysqlconn.Open(mysqlconn.Config{Addr: addr, User: user, Password: password})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			n := 0
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+database+".entity WHERE row_key = ?", a.key.Row[:]).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for range 2 { // it lists, as often as asked, and changes nothing
			stdout, stderr := rejoin(3, name, old)
			for _, a := range []acked{alone, rival} {
				if !strings.Contains(stdout, a.key.String()) || has(old, a) != 1 {
					t.Errorf("errant cell %s is not listed, or is gone from %s: %s", a.key, old, stdout)
				}
			}
			if strings.Count(stdout, "\n") != 3 || !strings.Contains(stderr, "--errant put") || !strings.Contains(stderr, "--errant drop") || strings.Contains(stdout+stderr, "total") {
				t.Errorf("want a header, two cells without their bodies, and what to say: %s%s", stdout, stderr)
			}
			if has(next, alone) != 0 {
				t.Error("the errant cell was put unasked")
			}
		}
		rejoin(2, name, old, "--errant", "list")
		rejoin(1, name, next, "--errant", errant) // the master
		rejoin(1, name, "nobody")
		rejoin(1, "c9", old)
		stdout, _ := rejoin(0, name, old, "--errant", errant, "--format", "json")
		var did struct {
			Master         string
			Errant         []struct{ Key string }
			Put, Conflicts int
			Rebuilt        bool
		}
		if err := json.Unmarshal([]byte(stdout), &did); err != nil || did.Master != next || len(did.Errant) != 2 || !did.Rebuilt {
			t.Errorf("%s (%v)", stdout, err)
		}
		_, err := c.Get(t.Context(), "trips", alone.key, client.ReadOptions{})
		if errant == "put" {
			if did.Put != 1 || did.Conflicts != 1 {
				t.Errorf("put again: %s, want one, and one conflict", stdout)
			}
			all = append(all, alone) // checked below
		} else if !client.IsNotFound(err) || did.Put+did.Conflicts != 0 || has(old, alone) != 0 {
			t.Errorf("dropped: %v, %s", err, stdout)
		}
		if stdout, _ := rejoin(0, name, old); !strings.Contains(stdout, old+" follows "+next+", re-pointed") {
			t.Errorf("once more: %s", stdout)
		}
		if bad := doctor(0); bad != "" {
			t.Errorf("it follows: %s", bad)
		}
		d.checkAcknowledged(t, all)
		harness.WaitFor(t, time.Minute, func() error {
			if a, b := has(old, stands), has(next, stands); a != 1 || b != 1 {
				return fmt.Errorf("the cell that stands is %d times on %s, %d times on %s", a, old, b, next)
			}
			return nil
		})
	}
	d.stop(t)
}

// verify --acks finds an answer that is not true of what stands, and verify a
// cell that is twice in Kafka.
func TestVerifyFindsWhatIsLostOrDoubled(t *testing.T) {
	d := newDev(t, "--auto-promote", "0s")
	d.start(t)
	c := d.client(t)
	file := filepath.Join(filepath.Dir(d.dir), "answers.jsonl")
	j, err := acks.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	say := func(status int, a acked) {
		t.Helper()
		if err := j.Append(acks.Answer{Status: status, Key: a.key, Body: []byte(a.body)}); err != nil {
			t.Fatal(err)
		}
	}
	type report struct {
		Duplicates, Missing int
		Acks                acks.Report
	}
	verify := func(want int) (r report) {
		t.Helper()
		stdout, stderr, code := harness.Try(t, "verify", "trips", "--acks", file, "--config", d.config(t), "--format", "json")
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != want {
			t.Fatalf("verify: exit %d, want %d: %s%s (%v)", code, want, stdout, stderr, err)
		}
		return r
	}
	var cells []acked
	for i := range 20 {
		a := inShard(cellog.ShardID(i%shards), fmt.Sprintf(`{"total":%d}`, i))
		if _, err := c.Put(t.Context(), "trips", cellog.Put{Key: a.key, Body: []byte(a.body)}); err != nil {
			t.Fatal(err)
		}
		say(201, a)
		cells = append(cells, a)
	}
	if r := verify(0); r.Acks.Acknowledged != len(cells) || !r.Acks.Clean() {
		t.Errorf("all is true: %+v", r)
	}
	say(201, acked{cells[0].key, `{"total":"another"}`}) // two bodies were acknowledged
	if r := verify(3); r.Acks.TwoBodies != 1 || r.Acks.Lost != 0 {
		t.Errorf("two bodies under one key: %+v", r)
	}
	lost := inShard(0, `{"total":1}`)
	say(201, lost)
	if r := verify(3); r.Acks.Lost != 1 {
		t.Errorf("a cell that was acknowledged and is nowhere: %+v", r)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	// A record of the first cell is there once more.
	cl, err := kafka.NewAdmin(kafka.Config{Addrs: d.Kafka})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	topic := cellog.TopicName(d.prefix(), "trips", "BASE")
	offsets, err := cl.CommittedOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	p, err := kafka.OpenProducer(t.Context(), kafka.ProducerConfig{Config: kafka.Config{Addrs: d.Kafka}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	once := errors.New("once")
	for part, o := range offsets {
		err := kafka.ReadRange(t.Context(), kafka.Config{Addrs: d.Kafka}, topic, part, o.Start, o.End, func(f kafka.Fetched) error {
			if err := errors.Join(p.Begin(t.Context()), p.Send(t.Context(), kafka.NewMessage(topic, part, f.Record)), p.Commit(t.Context())); err != nil {
				return err
			}
			return once
		})
		if errors.Is(err, once) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(3); r.Duplicates != 1 {
		t.Errorf("a doubled cell: %+v", r)
	}
	d.stop(t)
}
