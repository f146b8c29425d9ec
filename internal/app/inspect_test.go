package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/doctor"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/internal/obs"
)

// cloned is a configuration that may be changed.
func cloned(cfg *config.Config) *config.Config {
	c := *cfg
	c.Clusters = slices.Clone(cfg.Clusters)
	for i := range c.Clusters {
		c.Clusters[i].Nodes = slices.Clone(c.Clusters[i].Nodes)
	}
	return &c
}

// secret is in no finding.
const secret = "not-the-password"

// Each mistake in the configuration, in what servers were told, in what accounts
// may do, and in who follows whom is found, at its node, with what mends it.
func TestDoctorFindsWhatIsWired(t *testing.T) {
	cfg, sets := configured(t, 2)
	cfg.Indexer.Schemas = ""
	env := Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "error"})}
	create := func() {
		t.Helper()
		if err := CreateDatastore(t.Context(), cfg, env, Create{Name: "trips", Shards: 2, Grant: true}); err != nil {
			t.Fatal(err)
		}
		for _, s := range sets {
			s.Sync(t)
		}
	}
	create()
	master, minion := sets[0].Master, sets[0].Minions[0]
	on := func(n *mysqltest.Node, q string) func(*config.Config) {
		return func(*config.Config) { n.Exec(t, q) }
	}
	wrong := func(of func(*config.Accounts) *config.Account) func(*config.Config) {
		return func(c *config.Config) {
			a := of(&c.Clusters[0].Accounts)
			*a = config.Account{User: a.User, Password: config.NewSecret(secret)}
		}
	}
	worker, tailer := "'"+mysqltest.Accounts.Worker.User+"'@'%'", "'"+mysqltest.Accounts.Tailer.User+"'@'%'"
	type want struct {
		where, check string
		level        doctor.Level
		found, fix   string
	}
	for _, c := range []struct {
		name string
		do   func(c *config.Config)
		want []want
		undo func()
	}{
		{"nothing", func(*config.Config) {}, nil, nil},
		{"a stale term", on(master, "UPDATE cellog_meta.terms SET term = 0 WHERE cluster = 'c1'"),
			[]want{{"c0-n0", "the term of cluster c1", doctor.Bad, "term 0, open", "cellog datastore create trips --shards 2 --partitions 2"}}, create},
		{"a missing term", on(master, "DELETE FROM cellog_meta.terms WHERE cluster = 'c1'"),
			[]want{{"c0-n0", "the term of cluster c1", doctor.Warn, "not told", "cellog datastore create trips"}}, create},
		{"no leave to hold copies", on(master, "DELETE FROM cellog_meta.terms WHERE cluster = 'c0'"),
			[]want{{"c0-n0", "the term of cluster c0", doctor.Warn, "not told", "cellog datastore create trips"}}, create},
		{"another server's leave", on(master, "UPDATE cellog_meta.terms SET server_uuid = 'other' WHERE cluster = 'c0'"),
			[]want{{"c0-n0", "the term of cluster c0", doctor.Bad, "on server other", "cellog datastore create trips"}}, create},
		{"a term that Kafka does not know", on(master, "UPDATE cellog_meta.terms SET term = 9 WHERE cluster = 'c1'"),
			[]want{{"c0-n0", "the term of cluster c1", doctor.Bad, "term 9", "kafka.prefix"}}, func() { master.Exec(t, "UPDATE cellog_meta.terms SET term = 1 WHERE cluster = 'c1'") }},
		{"a worker that may not number cells", on(master, "REVOKE UPDATE ON trips_0000.shard_log FROM "+worker),
			[]want{{"c0-n0", "the rights of the worker's account", doctor.Bad, "lacks UPDATE on `trips_0000`.`shard_log`", "GRANT UPDATE ON `trips_0000`.`shard_log` TO " + worker}}, nil},
		{"a worker that may not read shards", on(master, "REVOKE SELECT, INSERT ON `trips\\_%`.* FROM "+worker),
			[]want{{"c0-n0", "the rights of the worker's account", doctor.Bad, "lacks SELECT, INSERT on `trips\\_%`.*", "GRANT SELECT, INSERT ON `trips\\_%`.* TO " + worker}}, nil},
		{"a tailer without the binlog", on(master, "REVOKE REPLICATION SLAVE ON *.* FROM "+tailer),
			[]want{{"c0-n0", "the rights of the tailer's account", doctor.Bad, "lacks REPLICATION SLAVE on *.*", "GRANT REPLICATION SLAVE ON *.* TO " + tailer}}, nil},
		{"the admin's password", wrong(func(a *config.Accounts) *config.Account { return &a.Admin }),
			[]want{{"c0-n0", "the admin's account", doctor.Bad, "'" + mysqltest.Accounts.Admin.User + "'", "accounts.admin"}, {"c0-n1", "the admin's account", doctor.Bad, "1045", "accounts.admin"}}, nil},
		{"the worker's password", wrong(func(a *config.Accounts) *config.Account { return &a.Worker }),
			[]want{{"c0-n0", "the worker's account", doctor.Bad, "'" + mysqltest.Accounts.Worker.User + "'", "accounts.worker"}, {"c0-n1", "the worker's account", doctor.Bad, "1045", "accounts.worker"}}, nil},
		{"the replica's password", wrong(func(a *config.Accounts) *config.Account { return &a.Replica }),
			[]want{{"c0-n0", "the replica's account", doctor.Bad, "'" + mysqltest.Accounts.Replica.User + "'", "accounts.replica"}, {"c0-n1", "the replica's account", doctor.Bad, "1045", "accounts.replica"}}, nil},
		{"nodes of each other's clusters", func(c *config.Config) {
			a, b := &c.Clusters[0].Nodes[1], &c.Clusters[1].Nodes[1]
			a.Addr, b.Addr = b.Addr, a.Addr
		}, []want{{"c0-n1", "its cluster", doctor.Bad, "c1", "cluster c1"}, {"c1-n1", "its cluster", doctor.Bad, "c0", "cluster c0"},
			{"c0-n1", "replication source", doctor.Bad, "c1/c1-n0", "cellog cluster rejoin c0 c0-n1"}, {"c1-n1", "replication source", doctor.Bad, "c0/c0-n0", "cellog cluster rejoin c1 c1-n1"}}, nil},
		{"a server in two clusters", func(c *config.Config) { c.Clusters[1].Nodes[0].Addr = master.Socket() },
			[]want{{"c1-n0", "a server of its own", doctor.Bad, "c0/c0-n0", "clusters[].nodes[].addr"}, {"c1-n0", "its cluster", doctor.Bad, "c0", "cluster c0"},
				{"c1", "the opened node", doctor.Bad, "c1-n0", "cellog cluster promote c1"}, {"c1-n0", "shard trips_0000", doctor.Bad, "open", "clusters[].nodes"}}, nil},
		{"a master that the configuration does not know", func(c *config.Config) { c.Clusters[0].Nodes = c.Clusters[0].Nodes[1:] },
			[]want{{"c0", "the opened node", doctor.Bad, "c0-n0 (term 1, open)", "add it to clusters[].nodes"}}, nil},
		{"one cluster", func(c *config.Config) { c.Clusters = c.Clusters[:1] },
			[]want{{"clusters", "copies", doctor.Warn, "1 cluster", "add a cluster"}}, nil},
		{"two writable nodes", on(minion, "SET GLOBAL read_only = OFF"),
			[]want{{"c0", "one writable node", doctor.Bad, "c0-n0, c0-n1", "read_only=ON"}, {"c0", "the opened node", doctor.Bad, "c0-n1 takes writes", "cellog cluster promote c0"}},
			func() { minion.Exec(t, "SET GLOBAL read_only = ON") }},
		{"a minion of nobody", func(*config.Config) {
			if err := mysqlreplica.Forget(t.Context(), minion.DB(t, "")); err != nil {
				t.Fatal(err)
			}
		}, []want{{"c0-n1", "replication", doctor.Bad, "not a replica", "replicate from the cluster's master"}}, nil},
		{"a minion of another cluster's master", func(*config.Config) {
			a := mysqltest.Accounts.Replica
			if err := mysqlreplica.Follow(t.Context(), minion.DB(t, ""), mysqlreplica.Source{Addr: sets[1].Master.Addr(), User: a.User, Password: a.Password}); err != nil {
				t.Fatal(err)
			}
		}, []want{{"c0-n1", "replication source", doctor.Bad, "c1/c1-n0", "cellog cluster rejoin c0 c0-n1"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := cloned(cfg)
			c.do(cfg)
			if !strings.HasPrefix(c.name, "a minion of") {
				sets[0].Sync(t)
			}
			found := Inspect(t.Context(), cfg, env)
			text, err := json.Marshal(found)
			if err != nil || strings.Contains(string(text), secret) {
				t.Errorf("%v, or a password is told", err)
			}
			var mend []string
			for _, w := range c.want {
				i := slices.IndexFunc(found, func(f doctor.Finding) bool {
					return f.Where == w.where && f.Check == w.check && f.Level == w.level && strings.Contains(f.Found, w.found) && strings.Contains(f.Fix, w.fix)
				})
				if i < 0 {
					t.Errorf("not found: %+v", w)
					continue
				}
				if found[i].Why == "" {
					t.Errorf("without why: %+v", found[i])
				}
				if _, grant, ok := strings.Cut(found[i].Fix, "master: GRANT "); ok {
					mend = append(mend, "GRANT "+grant)
				}
			}
			if c.want == nil || t.Failed() {
				for _, f := range found {
					if f.Level == doctor.Bad || f.Level == doctor.Warn && c.want == nil && !strings.HasPrefix(f.Where, "topic") {
						t.Errorf("found: %+v", f)
					}
				}
			}
			for _, q := range mend { // it mends
				master.Exec(t, q)
			}
			if c.undo != nil {
				c.undo()
			}
			if mend != nil || c.undo != nil {
				sets[0].Sync(t)
				for _, f := range Inspect(t.Context(), cfg, env) {
					if f.Level == doctor.Bad {
						t.Errorf("after it was mended: %+v", f)
					}
				}
			}
		})
	}
}

// An account with no more than AdminRights makes a datastore, promotes a node,
// and rebuilds one; the doctor finds nothing amiss with it.
func TestAdminRightsAreEnough(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	cfg, sets := configured(t, 2)
	cfg.Indexer.Schemas = ""
	least := mysqlaccounts.Account{User: "least", Password: "least-password"}
	right := mysqlaccounts.AdminRights(mysqltest.Flavour() == mysqlserver.MariaDB)
	for i, s := range sets {
		s.Master.Exec(t, "CREATE USER 'least'@'%' IDENTIFIED BY '"+least.Password+"'; "+right.Grant("'least'@'%'"))
		s.Sync(t)
		cfg.Clusters[i].Accounts.Admin = config.Account{User: least.User, Password: config.NewSecret(least.Password)}
	}
	env := Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "error"})}
	if err := CreateDatastore(t.Context(), cfg, env, Create{Name: "trips", Shards: 2, Grant: true}); err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	p := &promotable{cfg: cfg, sets: sets, env: env, w: w}
	p.run(t, w)
	puts := p.write(t, 3)
	p.publish(t, 3)
	// The old master gets a cell of its own, and so must be rebuilt.
	old := sets[0].Master
	out, err := PromoteCluster(t.Context(), cfg, env, Promote{Cluster: "c0", Node: "c0-n1"})
	if err != nil {
		t.Fatal(err)
	}
	old.Exec(t, "SET GLOBAL read_only = OFF; UPDATE "+head0+" SET last_added_id = 4; SET GLOBAL read_only = ON")
	got, err := RejoinNode(t.Context(), cfg, env, Rejoin{Cluster: "c0", Node: "c0-n0", Errant: ErrantDrop})
	if err != nil || !got.Rebuilt {
		t.Fatalf("%+v %v, after %+v", got, err, out)
	}
	if n := old.Query(t, "SELECT COUNT(*) FROM "+entity0+" WHERE row_key = ?", puts[2].Row[:]); n != "1" {
		t.Errorf("the rebuilt node has %s cells", n)
	}
	for _, f := range Inspect(t.Context(), cfg, env) {
		if f.Level == doctor.Bad {
			t.Errorf("%+v", f)
		}
	}
}

// What the configuration has wrong is said at the start too, by the name of the
// node and the account, and one cluster alone is warned of.
func TestStartsNameWhatIsWrong(t *testing.T) {
	cfg, _ := configuredWith(t, []int{0})
	cfg.Indexer.Schemas = ""
	var log bytes.Buffer
	env := Env{Log: obs.NewLogger(&log, obs.LogConfig{Level: "warn"})}
	if err := CreateDatastore(t.Context(), cfg, env, Create{Name: "trips", Shards: 1, Grant: true}); err != nil {
		t.Fatal(err)
	}
	named := func(what, text, user string) {
		t.Helper()
		if !strings.Contains(text, "c0-n0") || !strings.Contains(text, "'"+user+"'") || strings.Contains(text, secret) {
			t.Errorf("%s: %s, want node and account named, and no password", what, text)
		}
	}
	wrong := cloned(cfg)
	a := &wrong.Clusters[0].Accounts
	a.Worker.Password, a.Tailer.Password = config.NewSecret(secret), config.NewSecret(secret)
	w, err := NewWorker(wrong, env)
	if err != nil {
		t.Fatal(err)
	}
	if err = w.Start(t.Context()); err == nil {
		t.Error("a worker starts that is let in nowhere")
	} else {
		named("worker", err.Error(), a.Worker.User)
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	tl, err := NewTailers(wrong, env)
	if err != nil {
		t.Fatal(err)
	}
	if err := tl.Start(t.Context()); err != nil {
		named("tailer", err.Error(), a.Tailer.User)
	} else {
		waitFor(t, 20*time.Second, func() error {
			if err := tl.Status()["c0"].Err; err == nil || !strings.Contains(err.Error(), "c0-n0") {
				return fmt.Errorf("the tailer's status: %w", err)
			}
			return nil
		})
		named("tailer", tl.Status()["c0"].Err.Error(), a.Tailer.User)
	}
	if err := tl.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if w, err = NewWorker(cfg, env); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "one cluster alone") {
		t.Errorf("no warning: %s", log.String())
	}
}

// A claim that was left is named, with what goes on from there; so is a master
// that was not told of it.
func TestDoctorFindsAClaimThatWasLeft(t *testing.T) {
	defer func(d time.Duration) { openAfter = d }(openAfter)
	openAfter = 0
	p := newPromotable(t)
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
	of := func(where, check string) doctor.Finding {
		t.Helper()
		for _, f := range Inspect(t.Context(), p.cfg, p.env) {
			if f.Where == where && f.Check == check {
				return f
			}
		}
		t.Fatalf("no %s of %s", check, where)
		return doctor.Finding{}
	}
	if f := of("c0", "the opened node"); f.Level != doctor.Bad || !strings.Contains(f.Found, "term 2, claimed") || f.Fix != "cellog cluster promote c0" {
		t.Errorf("%+v", f)
	}
	if f := of("c1-n0", "the term of cluster c0"); f.Level != doctor.Warn || f.Found != "term 1, open" || f.Fix != "cellog cluster promote c0" {
		t.Errorf("%+v", f)
	}
	if _, err := PromoteCluster(t.Context(), p.cfg, p.env, Promote{Cluster: "c0"}); err != nil {
		t.Fatal(err)
	}
	if f := of("c0", "the opened node"); f.Level != doctor.OK {
		t.Errorf("%+v", f)
	}
	if f := of("c1-n0", "the term of cluster c0"); f.Level != doctor.OK {
		t.Errorf("%+v", f)
	}
}
