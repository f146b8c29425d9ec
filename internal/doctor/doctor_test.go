package doctor

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func worstOf(f []Finding, check string) Finding {
	for _, x := range f {
		if x.Check == check {
			return x
		}
	}
	return Finding{Level: "absent"}
}

// A server as cellog starts it is well; each setting that is made wrong on
// purpose is found, with its fix, and nothing else is.
func TestMisSetServers(t *testing.T) {
	n := mysqltest.Start(t)
	db := n.DB(t, "")
	node := Node{Cluster: "c0", Name: "c0-n0", DB: db, MaxBody: 8 << 20}
	n.Exec(t, "SET GLOBAL read_only=OFF")
	found, s := MySQL(t.Context(), node)
	for _, f := range found {
		if f.Level != OK {
			t.Errorf("a server as cellog starts it: %+v", f)
		}
	}
	if !s.Writable || !s.Reached || s.MariaDB != (mysqltest.Flavour() == mysqlserver.MariaDB) {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		variable, bad, good string
		level               Level
	}{
		{"binlog_format", "'STATEMENT'", "'ROW'", Bad},
		{"binlog_row_image", "'MINIMAL'", "'FULL'", Bad},
		{"sync_binlog", "0", "1", Bad},
		{"innodb_flush_log_at_trx_commit", "2", "1", Bad},
		{"gtid_strict_mode", "0", "1", Bad},
		{"master_verify_checksum", "0", "1", Warn},
		{"binlog_annotate_row_events", "1", "0", Warn},
		{"replica_preserve_commit_order", "0", "1", Warn},
		{"max_allowed_packet", "1048576", "1073741824", Bad},
		{"character_set_server", "latin1", "utf8mb4", Warn},
	} {
		t.Run(c.variable, func(t *testing.T) {
			_, ok, err := node.variable(t.Context(), c.variable)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(settings, func(s setting) bool { return s.name == c.variable })
			if !ok || i >= 0 && !(s.MariaDB && settings[i].mariadb || !s.MariaDB && settings[i].mysql) {
				t.Skipf("nothing to say of it on %s", mysqltest.Flavour())
			}
			n.Exec(t, "SET GLOBAL "+c.variable+"="+c.bad)
			defer n.Exec(t, "SET GLOBAL "+c.variable+"="+c.good)
			found, _ := MySQL(t.Context(), node)
			for _, f := range found {
				switch {
				case f.Check == c.variable && (f.Level != c.level || f.Fix == "" || f.Why == ""):
					t.Errorf("not found, or without why and fix: %+v", f)
				case f.Check != c.variable && f.Level != OK:
					t.Errorf("found besides: %+v", f)
				}
			}
			if Worst(found) != c.level {
				t.Errorf("worst is %s", Worst(found))
			}
		})
	}
	n.Exec(t, "SET GLOBAL read_only=ON")
	found, s = MySQL(t.Context(), node)
	if f := worstOf(found, "replication"); f.Level != Bad || s.Writable {
		t.Errorf("a read-only server that replicates from nobody: %+v", f)
	}
	if f := Cluster("c0", []Server{s, s})[0]; f.Level != Bad || f.Found != "none" {
		t.Errorf("no writable node: %+v", f)
	}
	n.Exec(t, "SET GLOBAL read_only=OFF")
}

// A minion whose replication stands still is found also when somebody let it
// take writes.
func TestStoppedReplication(t *testing.T) {
	c := mysqltest.Cluster(t, 1)
	minion := c.Minions[0]
	node := Node{Cluster: "c0", Name: "m", DB: minion.DB(t, "")}
	if found, _ := MySQL(t.Context(), node); worstOf(found, "replication").Level != OK {
		t.Errorf("%+v", worstOf(found, "replication"))
	}
	stop, start := "STOP REPLICA", "START REPLICA"
	if mysqltest.Flavour() == mysqlserver.MariaDB {
		stop, start = "STOP SLAVE", "START SLAVE"
	}
	minion.Exec(t, stop)
	for _, readOnly := range []string{"OFF", "ON"} {
		minion.Exec(t, "SET GLOBAL read_only="+readOnly)
		if found, _ := MySQL(t.Context(), node); worstOf(found, "replication").Level != Bad {
			t.Errorf("read_only=%s: %+v", readOnly, worstOf(found, "replication"))
		}
	}
	minion.Exec(t, start)
}

func TestCluster(t *testing.T) {
	up := Server{Node: Node{Name: "a"}, Reached: true, Writable: true}
	down := Server{Node: Node{Name: "b"}, Reached: true}
	for _, c := range []struct {
		servers         []Server
		master, minions Level
	}{
		{[]Server{up, down}, OK, OK},
		{[]Server{up, up}, Bad, OK},
		{[]Server{down, down}, Bad, OK},
		{[]Server{up}, OK, Warn},
		{[]Server{{}, {}}, Bad, OK},
	} {
		f := Cluster("c0", c.servers)
		if f[0].Level != c.master || f[1].Level != c.minions {
			t.Errorf("%+v", f)
		}
	}
	// The master may be the one that does not answer: nobody must be told to
	// make a second one.
	if f := Cluster("c0", []Server{down, {Node: Node{Name: "c"}}})[0]; f.Level != Bad || strings.Contains(f.Fix, "read_only") {
		t.Errorf("%+v", f)
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: "127.0.0.1:1", User: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	found, s := MySQL(t.Context(), Node{Name: "gone", DB: db})
	if len(found) != 1 || found[0].Level != Bad || s.Reached {
		t.Errorf("%+v", found)
	}
}

// A server that takes connections and says nothing, as a frozen one does, is
// not waited for.
func TestServerThatIsFrozen(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	patience = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: l.Addr().String(), User: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	found, s := MySQL(t.Context(), Node{Name: "frozen", DB: db})
	found = append(found, Kafka(t.Context(), Stream{Kafka: kafka.Config{Addrs: []string{l.Addr().String()}}})...)
	if len(found) != 2 || found[0].Level != Bad || found[0].Found != "no answer within 100ms" || found[1].Found != found[0].Found || s.Reached {
		t.Errorf("%+v", found)
	}
}

func TestOldVersions(t *testing.T) {
	for v, want := range map[string]Level{"8.0.36": Bad, "8.3.0": Bad, "8.4.0": OK, "9.7.0": OK, "10.5.9-MariaDB": Bad, "10.6.1-MariaDB": OK, "11.4.2-MariaDB-log": OK} {
		if f := (Node{}).version(Server{Version: v, MariaDB: strings.Contains(v, "Maria")}); f.Level != want {
			t.Errorf("%s: %+v", v, f)
		}
	}
	for sound, want := range map[bool]Level{false: Warn, true: OK} {
		if f := brokerVersion(1, kafka.BrokerVersion{Guess: "v4.1", SoundTransactions: sound}); f.Level != want {
			t.Errorf("%+v", f)
		}
	}
}

// The worker of the tests' accounts has production's rights; the admin may
// change cells, and is caught.
func TestWorkerAccount(t *testing.T) {
	n := mysqltest.Server(t)
	n.CreateShards(t, "doc", 1)
	database := cellog.DatabaseName("doc", 0)
	for _, f := range Worker(t.Context(), "c0", n.As(t, mysqltest.Accounts.Worker, ""), database) {
		if f.Level != OK {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range Worker(t.Context(), "c0", n.DB(t, ""), database) {
		if f.Level != Bad || !strings.Contains(f.Fix, "REVOKE") {
			t.Errorf("%+v", f)
		}
	}
}

func TestKafka(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "trips.BASE"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	cfg := kafka.Config{Addrs: cluster.ListenAddrs()}
	a, err := kafka.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, s := range []kafka.TopicSpec{kafka.PositionsTopic("_cellog.positions.c0"), kafka.ColumnTopic("trips.STATUS", 4, body.MaxBytes)} {
		if _, err := a.EnsureTopic(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	found := Kafka(t.Context(), Stream{Kafka: cfg, Clusters: []string{"c0"}, Datastores: []Datastore{{"trips", 4}}})
	got := map[string]Level{}
	for _, f := range found {
		got[f.Where] = f.Level
	}
	for where, want := range map[string]Level{"topic _cellog.positions.c0": OK, "topic _cellog.heartbeats": Warn, "topic trips.STATUS": OK, "topic trips.BASE": Bad} {
		if got[where] != want {
			t.Errorf("%s: %s, want %s (%+v)", where, got[where], want, found)
		}
	}
	found = Kafka(t.Context(), Stream{Kafka: kafka.Config{}})
	if Worst(found) != Bad {
		t.Errorf("no brokers: %+v", found)
	}
}

// A minion that follows a server of another cluster is found, and so is one
// server that stands in the configuration twice, by its port and its socket.
func TestStrangersAndTwins(t *testing.T) {
	c, lone := mysqltest.Cluster(t, 1), mysqltest.Start(t)
	see := func(cluster, name string, n *mysqltest.Node) Server {
		t.Helper()
		_, s := MySQL(t.Context(), Node{Cluster: cluster, Name: name, DB: n.DB(t, "")})
		if s.ID == "" || s.Machine == "" {
			t.Fatalf("%+v", s)
		}
		return s
	}
	master, minion, other := see("c0", "a", c.Master), see("c0", "b", c.Minions[0]), see("c1", "c", lone)
	if minion.Source != master.ID || master.Source != "" {
		t.Errorf("the minion follows %q, the master is %q and follows %q", minion.Source, master.ID, master.Source)
	}
	if f := worstOf(Sources([]Server{master, minion, other}), "replication source"); f.Level != OK || f.Found != "c0/a" {
		t.Errorf("%+v", f)
	}
	strange := minion
	strange.Node.Cluster = "c1"
	if f := worstOf(Sources([]Server{master, strange, other}), "replication source"); f.Level != Bad || f.Found != "c0/a" {
		t.Errorf("a minion of another cluster: %+v", f)
	}
	if f := worstOf(Sources([]Server{other, strange}), "replication source"); f.Level != Bad || !strings.Contains(f.Found, c.Master.Addr()) {
		t.Errorf("a minion of a server that nobody knows: %+v", f)
	}
	if f := worstOf(Sources([]Server{other, strange, {Node: Node{Cluster: "c1"}}}), "replication source"); f.Level != Warn {
		t.Errorf("a minion of one that may be of its cluster: %+v", f)
	}
	if f := Machines([]Server{master, minion, other, {}, {}}); len(f) != 0 {
		t.Errorf("%+v", f)
	}
	twin := see("c1", "d", c.Master)
	if f := Machines([]Server{master, minion, twin}); len(f) != 1 || f[0].Level != Bad || f[0].Where != "d" || !strings.Contains(f[0].Found, "c0/a") {
		t.Errorf("%+v", f)
	}
	// Replication, and the name of an opened node, know a server by its id.
	lone.Exec(t, "SET GLOBAL server_id = "+master.ID)
	if f := Machines([]Server{master, see("c0", "e", lone)}); len(f) != 1 || f[0].Level != Bad || f[0].Where != "e" || f[0].Check != "an id of its own" || f[0].Found != "server_id "+master.ID+", as c0/a" {
		t.Errorf("one server_id twice in a cluster: %+v", f)
	}
	if f := Machines([]Server{master, see("c1", "e", lone)}); len(f) != 0 {
		t.Errorf("clusters count their ids by themselves: %+v", f)
	}
	copied := other // its data directory, auto.cnf and all
	copied.Machine, copied.UUID, copied.Node.Name = "elsewhere", "u", "f"
	other.UUID = "u"
	if f := Machines([]Server{other, copied}); len(f) != 1 || f[0].Where != "f" || f[0].Found != "server_uuid u, as c1/c" {
		t.Errorf("one server_uuid twice: %+v", f)
	}
}

func TestTermsAndOpenedNodes(t *testing.T) {
	a := Server{Node: Node{Cluster: "c0", Name: "a"}, MariaDB: true, ID: "1", Reached: true, Writable: true}
	b := Server{Node: Node{Cluster: "c0", Name: "b"}, MariaDB: true, ID: "2", Reached: true}
	open := func(n int, s Server) Term { return Term{Term: n, Opened: true, Node: s.Node.Name, Server: s.Name()} }
	clusters := []string{"c0", "c1"}
	newest := map[string]Term{"c0": open(3, a), "c1": {Term: 7, Node: "c"}}
	for _, c := range []struct {
		name, where string
		told        map[string]Term
		want        Level
		why         string
	}{
		{"all is told", "c1", map[string]Term{"c0": open(3, a), "c1": {Term: 7}}, OK, ""},
		{"a claim is not told", "c1", map[string]Term{"c1": {Term: 6, Opened: true}}, Warn, "a promotion goes on, or was left"},
		{"never told", "c1", nil, Warn, "puts wait"},
		{"a term ahead of Kafka", "c1", map[string]Term{"c1": {Term: 8}}, Bad, "forgotten"},
		{"its own", "c0", map[string]Term{"c0": open(3, a)}, OK, ""},
		{"its own, claimed", "c0", map[string]Term{"c0": {Term: 3, Server: a.Name()}}, Warn, "takes no copies"},
		{"its own, an older one", "c0", map[string]Term{"c0": open(2, a)}, Warn, "takes no copies"},
		{"its own, another node's", "c0", map[string]Term{"c0": open(3, b)}, Bad, "and no puts"},
	} {
		f := worstOf(Terms(a, c.told, newest, clusters, "tell"), "the term of cluster "+c.where)
		if f.Level != c.want || !strings.Contains(f.Why, c.why) || (f.Fix == "") != (c.want == OK) {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
	newest["c1"] = Term{Term: 7, Opened: true}
	if f := Terms(a, map[string]Term{"c0": open(3, a), "c1": {Term: 6, Opened: true}}, newest, clusters, "tell")[1]; f.Level != Bad || f.Fix != "tell" {
		t.Errorf("a term behind: %+v", f)
	}
	rw, ro := a, a
	ro.Writable, b.Writable = false, false
	wb := b
	wb.Writable = true
	for _, c := range []struct {
		newest  *Term
		servers []Server
		want    Level
		text    string
	}{
		{&Term{Term: 3, Opened: true, Node: "a", Server: a.Name()}, []Server{rw, b}, OK, ""},
		{nil, []Server{rw, b}, Warn, "datastore create"},
		{&Term{Term: 4, Node: "a", Server: a.Name()}, []Server{rw, b}, Bad, "promote c0"},
		{&Term{Term: 3, Opened: true, Node: "z"}, []Server{rw, b}, Bad, "add it to clusters[].nodes"},
		{&Term{Term: 3, Opened: true, Node: "a", Server: "other"}, []Server{rw, b}, Bad, "promote c0"},
		{&Term{Term: 3, Opened: true, Node: "a", Server: a.Name()}, []Server{ro, wb}, Bad, "which makes it the master"},
		{&Term{Term: 3, Opened: true, Node: "a", Server: a.Name()}, []Server{{Node: a.Node}, b}, OK, ""}, // it does not answer: that is said
	} {
		if f := OpenedNode("c0", c.newest, c.servers); f.Level != c.want || !strings.Contains(f.Fix, c.text) || (f.Fix == "") != (c.want == OK) {
			t.Errorf("%+v: %+v", c.newest, f)
		}
	}
	shards := []OpenShard{{"c0", "a", "trips_0000"}, {"c0", "a", "trips_0001"}, {"c1", "c", "trips_0000"}, {"c1", "c", "trips_0003"}}
	f := Shards(shards, map[string]string{"trips_0000": "c1", "trips_0003": "c1"})
	if len(f) != 1 || f[0].Where != "a" || f[0].Check != "shard trips_0000" || f[0].Level != Bad {
		t.Errorf("a shard that another cluster owns: %+v", f)
	}
	if f := Shards(shards, nil); len(f) != 1 || f[0].Where != "c" || f[0].Found != "open, and on c0/a too" {
		t.Errorf("a shard that is open twice: %+v", f)
	}
}
