package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage/mysql"
)

// promotable is a datastore of two shards on two clusters, shard 0 on c0, whose
// stream a test runs when it wants to.
type promotable struct {
	cfg  *config.Config
	sets []*mysqltest.Set
	env  Env
	w    *Worker
}

func newPromotable(t *testing.T) *promotable { t.Helper(); return newPromotableWith(t, 1) }

// newPromotableWith has so many minions in c0.
func newPromotableWith(t *testing.T, minions int) *promotable {
	t.Helper()
	cfg, sets := configuredWith(t, []int{minions, 1})
	cfg.Indexer.Schemas = ""
	p := &promotable{cfg: cfg, sets: sets, env: Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "error"})}}
	if err := CreateDatastore(t.Context(), cfg, p.env, Create{Name: "trips", Shards: 2, Grant: true}); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(cfg, p.env)
	if err != nil {
		t.Fatal(err)
	}
	p.w = w
	p.run(t, w)
	return p
}

// run starts a role; stop may be called before the test ends.
func (p *promotable) run(t *testing.T, r Role) (stop func()) {
	t.Helper()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// write stores cells in shard 0.
func (p *promotable) write(t *testing.T, n int) []cellog.Put { t.Helper(); return p.writeTo(t, 0, n) }

// puts makes puts of new rows.
func (p *promotable) puts(t *testing.T, n int) []cellog.Put {
	t.Helper()
	puts := make([]cellog.Put, n)
	for i := range puts {
		b, err := body.Encode(nil, fmt.Appendf(nil, `{"n":%d}`, i), body.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		puts[i] = cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: b}
	}
	return puts
}

func (p *promotable) writeTo(t *testing.T, shard cellog.ShardID, n int) []cellog.Put {
	t.Helper()
	puts := p.puts(t, n)
	_, errs := p.w.store.Write(t.Context(), "trips", shard, puts)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return puts
}

// publish runs the tailers until so many cells of shard 0 are final.
func (p *promotable) publish(t *testing.T, n cellog.AddedID) {
	t.Helper()
	p.tail(t, n)()
	p.sets[0].Sync(t)
}

// tail starts the tailers, and returns when so many cells of shard 0 are final.
func (p *promotable) tail(t *testing.T, n cellog.AddedID) (stop func()) {
	t.Helper()
	tl, err := NewTailers(p.cfg, p.env)
	if err != nil {
		t.Fatal(err)
	}
	stop = p.run(t, tl)
	waitFor(t, time.Minute, func() error {
		if m, ok := p.w.final.Mark("trips", 0); !ok || m.Last < n {
			return fmt.Errorf("final up to %d of %d", m.Last, n)
		}
		return nil
	})
	return stop
}

// quietly changes a server without a trace in its binlog, read-only or not.
func quietly(t *testing.T, n *mysqltest.Node, statements string) {
	t.Helper()
	readOnly := n.Query(t, "SELECT @@global.read_only")
	n.Exec(t, "SET GLOBAL read_only = OFF; SET sql_log_bin = 0; "+statements+"; SET sql_log_bin = 1; SET GLOBAL read_only = "+readOnly)
}

// look is what a keeper does at each look at c0.
func (p *promotable) look(t *testing.T) error {
	t.Helper()
	k := NewKeeper(p.cfg, p.env, 0)
	k.final = p.w.final
	w := watcher{k: k, cluster: &p.cfg.Clusters[0]}
	defer w.close()
	return w.once(t.Context())
}

const entity0, head0 = "trips_0000.entity", "trips_0000.shard_log"

// A node that has another cell than Kafka, or that lacks one, is not made
// writable after a restart; it is not promoted with another one, and what no
// node has comes back from Kafka. One of an older epoch is no candidate, however
// much it has.
func TestGate(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	puts := p.write(t, 5)
	p.publish(t, 5)
	nodes := []*mysqltest.Node{p.sets[0].Master, p.sets[0].Minions[0]}
	both := func(statements string) {
		t.Helper()
		for _, n := range nodes {
			quietly(t, n, statements)
		}
	}
	restart := func() {
		t.Helper()
		// As a server starts: MySQL refuses administrators too.
		if err := mysqlreplica.SetReadOnly(t.Context(), nodes[0].DB(t, ""), true); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	if err := p.look(t); err != nil || nodes[0].Query(t, "SELECT @@global.read_only") != "0" {
		t.Fatalf("a master that has all is not writable again after a restart: %v", err)
	}
	restarted := func() {
		t.Helper()
		restart()
		if err := p.look(t); err == nil || !strings.Contains(err.Error(), "added_id 5") {
			t.Errorf("the gate: %v", err)
		}
		if nodes[0].Query(t, "SELECT @@global.read_only") != "1" {
			t.Error("the node is writable without all that is final")
		}
	}
	both("UPDATE " + entity0 + " SET row_key = REPEAT('x', 16) WHERE added_id = 5")
	restarted()
	if out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"}); err == nil || !strings.Contains(err.Error(), "another cell") {
		t.Errorf("a node with another cell was promoted: %+v %v", out, err)
	}
	for i, n := range nodes {
		if n.Query(t, "SELECT @@global.read_only") != "1" || n.Query(t, "SELECT epoch FROM "+head0) != "1" {
			t.Errorf("node %d was changed by a promotion that failed", i)
		}
	}
	both("DELETE FROM " + entity0 + " WHERE added_id = 5; UPDATE " + head0 + " SET last_added_id = 4")
	out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0", Node: "c0-n0"})
	if err != nil || out.Restored != 1 {
		t.Fatalf("%+v %v, want one cell from Kafka", out, err)
	}
	same := "SELECT COUNT(*) FROM " + entity0 + " WHERE added_id = 5 AND epoch = 1 AND row_key = ?"
	if got := nodes[0].Query(t, same, puts[4].Row[:]); got != "1" {
		t.Error("the cell did not come back as it was")
	}
	p.sets[0].Sync(t)
	if got := nodes[1].Query(t, same, puts[4].Row[:]); got != "1" {
		t.Error("the cell did not come to the minion")
	}
	// Whoever lacks it after a restart: the record says open in a new term now.
	both("DELETE FROM " + entity0 + " WHERE added_id = 5; UPDATE " + head0 + " SET last_added_id = 4")
	waitFor(t, 20*time.Second, func() error {
		if c, _ := p.w.final.cluster("c0"); c == nil || c.Term != 3 || c.State != position.Open {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	restarted()
	if out, err = PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0", Node: "c0-n0"}); err != nil || out.Restored != 1 || out.Term != 4 {
		t.Fatalf("%+v %v", out, err)
	}
	p.sets[0].Sync(t)
	// A dead branch.
	quietly(t, nodes[1], "UPDATE "+head0+" SET epoch = 1, last_added_id = 99")
	out, err = PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"})
	if err != nil || out.Node != "c0-n0" || !strings.Contains(out.Left["c0-n1"], "epoch 1") {
		t.Errorf("%+v %v, want c0-n0, for the other is of an old epoch", out, err)
	}
}

// A promotion brings all copies in before anybody can write, and lets nobody
// write until the last read that began before the claim is over.
func TestShardsOpenLast(t *testing.T) {
	whole := wait
	defer func() { wait = whole }()
	p := newPromotable(t)
	minion, db := p.sets[0].Minions[0], p.sets[0].Minions[0].DB(t, "")
	if err := mysqlreplica.Stop(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	puts := p.write(t, 5) // answered, for c1's master has the copies
	p.sets[0].Master.Kill()
	<-p.sets[0].Master.Done()
	errWait := errors.New("the promoter dies while it waits")
	var waited []time.Duration
	wait = func(_ context.Context, d time.Duration) error {
		waited = append(waited, d)
		return errWait
	}
	if out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"}); !errors.Is(err, errWait) {
		t.Fatalf("%+v %v, want it to wait until the reads are over", out, err)
	}
	if len(waited) != 1 || waited[0] <= 0 || waited[0] > openAfter {
		t.Errorf("it waited %v, want what is left of %v", waited, openAfter)
	}
	if got := minion.Query(t, "SELECT CONCAT(state, ' ', last_added_id, ' ', @@global.read_only + 0) FROM "+head0); got != "closed 5 1" {
		t.Errorf("before the wait is over the shard is: %s", got)
	}
	for i, c := range puts {
		if got := minion.Query(t, "SELECT added_id FROM "+entity0+" WHERE row_key = ?", c.Row[:]); got != fmt.Sprint(i+1) {
			t.Errorf("cell %d: added_id %q", i+1, got)
		}
	}
	wait = func(context.Context, time.Duration) error { return nil }
	if err := p.finishes(t); err != nil {
		t.Fatal(err)
	}
	if got := minion.Query(t, "SELECT CONCAT(state, ' ', last_added_id, ' ', @@global.read_only + 0) FROM "+head0); got != "open 5 0" {
		t.Errorf("finished: %s", got)
	}
}

// finishes lets a keeper finish a promotion that was left.
func (p *promotable) finishes(t *testing.T) error {
	t.Helper()
	record, err := openedOf(t.Context(), p.cfg, p.env, "c0")
	if err != nil {
		return err
	}
	w := watcher{k: NewKeeper(p.cfg, p.env, 0), cluster: &p.cfg.Clusters[0], record: *record, since: time.Now().Add(-time.Minute), dbs: map[string]*sql.DB{}}
	w.k.final = p.w.final
	defer w.close()
	waitFor(t, 20*time.Second, func() error {
		if c, _ := p.w.final.cluster("c0"); c == nil || c.Term != record.Term || c.State != record.State {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if err := w.connect(); err != nil {
		return err
	}
	return w.serve(t.Context())
}

// A claimant tells a master of its claim before it looks at what that one has
// stored: it waits for writes in flight, whose copies may go to the old master.
func TestClaimIsKnownBeforeTheScan(t *testing.T) {
	p := newPromotable(t)
	master := p.sets[1].Master
	tx, err := master.DB(t, "").BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	for _, q := range []string{
		"SELECT term FROM cellog_meta.terms LOCK IN SHARE MODE", // as every write does
		"UPDATE trips_0001.shard_log SET last_added_id = 7 WHERE id = 1",
	} {
		if _, err := tx.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	record, err := openedOf(t.Context(), p.cfg, p.env, "c1")
	if err != nil {
		t.Fatal(err)
	}
	pr := promotion{cfg: p.cfg, env: p.env, req: Promote{Cluster: "c0"}}
	type told struct {
		o   other
		err error
	}
	done := make(chan told, 1)
	go func() {
		o, err := pr.tell(t.Context(), "c1", *record, mysql.TermRecord{Cluster: "c0", Term: 2, State: position.Claimed})
		done <- told{o, err}
	}()
	waitFor(t, 20*time.Second, func() error {
		select {
		case got := <-done:
			t.Fatalf("it did not wait for the write in flight: %+v", got)
		case <-time.After(150 * time.Millisecond): // polled faster, innodb_trx never renews itself
		}
		if master.Query(t, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") == "0" {
			return errors.New("nobody waits")
		}
		return nil
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	if err := mysqlconn.Close(got.o.db); err != nil {
		t.Error(err)
	}
	if len(got.o.heads) != 1 || got.o.heads[0].Last != 7 {
		t.Errorf("%+v, want the write that was in flight seen", got.o.heads)
	}
	if got := master.Query(t, "SELECT CONCAT(term, state) FROM cellog_meta.terms WHERE cluster = 'c0'"); got != "2claimed" {
		t.Errorf("the master knows %q", got)
	}
}

// Two rejoins of one node at once: one does it, and the node follows.
func TestTwoRejoinsAtOnce(t *testing.T) {
	p := newPromotable(t)
	puts := p.write(t, 3)
	p.sets[0].Sync(t)
	minion := p.sets[0].Minions[0]
	if err := mysqlreplica.Stop(t.Context(), minion.DB(t, "")); err != nil {
		t.Fatal(err)
	}
	// A cell that the master has not.
	minion.Exec(t, "SET GLOBAL read_only = OFF; INSERT INTO "+entity0+" SELECT 4, epoch, REPEAT('x', 16), column_name, ref_key, body, created_at, traceparent FROM "+entity0+
		" WHERE added_id = 3; UPDATE "+head0+" SET last_added_id = 4; SET GLOBAL read_only = ON")
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := RejoinNode(t.Context(), p.cfg, p.env, Rejoin{Cluster: "c0", Node: "c0-n1", Errant: ErrantPut})
			errs <- err
		}()
	}
	won := 0
	for range 2 {
		switch err := <-errs; {
		case err == nil:
			won++
		case !errors.Is(err, ErrRejoining):
			t.Errorf("the one that came second: %v", err)
		}
	}
	if won == 0 {
		t.Error("none did it")
	}
	p.sets[0].Sync(t)
	for _, n := range []*mysqltest.Node{p.sets[0].Master, minion} {
		if got := n.Query(t, "SELECT CONCAT(COUNT(*), ' ', MAX(added_id), ' ', SUM(row_key = REPEAT('x', 16))) FROM "+entity0); got != "4 4 1" {
			t.Errorf("cells: %s", got)
		}
	}
	if got := minion.Query(t, "SELECT COUNT(*) FROM "+entity0+" WHERE row_key = ?", puts[0].Row[:]); got != "1" {
		t.Error("the node has lost a cell")
	}
}

// A node is opened only when all is final that the other masters had stored at
// the claim: its copies may have lain on the old master.
func TestOthersAreFinalFirst(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	p.writeTo(t, 1, 1)
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(p.cfg, p.env, "test"), Cluster: "c1", Prefix: p.cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	passed := make(chan struct{})
	var last cellog.AddedID
	failpoint.Set(func(at string) bool {
		switch at {
		case "promote/gate-passed":
			close(passed)
		case "promote/others-final":
			if pos, err := pub.Positions(context.Background()); err == nil {
				last = pos.Shards[cdc.ShardKey{Datastore: "trips", Shard: 1}].Last
			}
		}
		return false
	})
	defer failpoint.Set(nil)
	done := make(chan error, 1)
	go func() {
		_, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0", Node: "c0-n1"})
		done <- err
	}()
	<-passed
	tl, err := NewTailers(p.cfg, p.env)
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, tl)
	if err := <-done; err != nil || last != 1 {
		t.Errorf("opened when the other cluster's cell 1 was final up to %d: %v", last, err)
	}
}

// A worker's reads of a master are unmarked while its looks at the terms go on,
// also when nothing happens; from a claim on until an open they are stale.
func TestReadsBetweenAClaimAndAnOpenAreStale(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
	read := func() cellog.Origin {
		t.Helper()
		_, _, o, err := p.w.store.Log(t.Context(), "trips", 0, 0, 1, "", 1, cellog.Master)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	becomes := func(stale bool) {
		t.Helper()
		waitFor(t, 20*time.Second, func() error {
			if o := read(); o.Stale != stale {
				return fmt.Errorf("%+v", o)
			}
			return nil
		})
	}
	if o := read(); o.Stale {
		t.Errorf("right after the start: %+v", o)
	}
	first := p.w.final.opened("c0").Looked
	waitFor(t, 20*time.Second, func() error { // nothing is written meanwhile
		if at := p.w.final.opened("c0").Looked; !at.After(first.Add(2 * lookEvery)) {
			return fmt.Errorf("the last look was at %v, the first at %v", at, first)
		}
		return nil
	})
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(p.cfg, p.env, "test"), Cluster: "c0", Prefix: p.cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	c, err := pub.Claim(t.Context(), publish.ClaimRequest{Mark: "m"})
	if err != nil {
		t.Fatal(err)
	}
	c.Close(t.Context())
	becomes(true)
	if out, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"}); err != nil || out.Node != "c0-n0" {
		t.Fatalf("%+v %v", out, err)
	}
	becomes(false)
}
