package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/tests/harness"
)

// minions is how many each cluster has.
var minions = []int{2, 1}

// columns are those of the cells.
var columns = []string{"BASE", "STATUS"}

// The numbers of processes of each role.
const (
	workers = 3
	tailers = 2
)

// broken says how cellog is broken on purpose: by a failpoint in all processes
// of a role.
type broken struct{ role, point, stopAt string }

// rig is a whole cellog, each part of it a process with links to the others.
type rig struct {
	t      *testing.T
	dir    string
	local  *local.Local
	config config.Config // of those who need no proxies
	file   string        // where it is
	broken broken
	notes  string // the trigger's
	real   *kafkatest.Broker

	procs []*process // roles, trigger and embedded broker
	links []*link
	disks map[string]string // by node: its file system of its own
	clock string            // the file that steps a server's clock; empty: none
	gone  map[string]bool   // nodes that are no live hosts any more
}

// clockNode is the server whose clock can be stepped, diskNodes are those with
// file systems of their own.
const clockNode = "c2a"

var diskNodes = []string{"c1a", "c2b"}

func newRig(t *testing.T, b broken) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "chaos") // short: unix sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, broken: b, notes: filepath.Join(dir, "notes"), disks: map[string]string{}, gone: map[string]bool{}}
	t.Cleanup(r.close)
	r.mount()
	r.startServers()
	r.startBroker()
	r.configure()
	if _, code := harness.Cellog(t, "datastore", "create", "trips", "--shards", strconv.Itoa(harness.Shards), "--grant", "--config", r.file); code != 0 {
		t.Fatal("no datastore")
	}
	r.replicateThroughLinks()
	r.startRoles()
	return r
}

// close ends everything and takes the file systems away, whatever happened.
func (r *rig) close() {
	for _, p := range r.procs {
		p.kill()
	}
	if r.local != nil {
		for _, n := range r.nodes() {
			_ = syscall.Kill(n.PID, syscall.SIGCONT) // gone is as good
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.local.Stop(ctx); err != nil && !r.t.Failed() {
			r.t.Error(err)
		}
	}
	for node, dir := range r.disks {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			r.t.Errorf("unmount the disk of %s: %v", node, err)
		}
	}
	if r.t.Failed() {
		r.t.Logf("the processes' logs are in %s", r.dir)
		return
	}
	if err := os.RemoveAll(r.dir); err != nil {
		r.t.Error(err)
	}
}

// diskSize is that of a server's own file system.
const diskSize = 1 << 30

// mount gives diskNodes file systems of their own, if that is allowed.
func (r *rig) mount() {
	for _, node := range diskNodes {
		dir := filepath.Join(r.dir, "data", "clusters", node[:2], node)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			r.t.Fatal(err)
		}
		if err := syscall.Mount("cellog-chaos", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize)); err != nil {
			r.t.Logf("left out: full disks, for a file system cannot be mounted: %v", err)
			return
		}
		r.disks[node] = dir
	}
}

// fakeTimes are where distributions keep libfaketime.
var fakeTimes = []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1"}

func (r *rig) startServers() {
	t := r.t
	t.Helper()
	var lib string
	for _, pattern := range fakeTimes {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the pattern is legal
			lib = found[0]
		}
	}
	var env []string
	if lib == "" {
		t.Log("left out: clock steps, for there is no libfaketime (tools/install-deps.sh chaos)")
	} else {
		r.clock = filepath.Join(r.dir, "clock")
		r.step(0)
		env = []string{"LD_PRELOAD=" + lib, "FAKETIME_TIMESTAMP_FILE=" + r.clock, "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_CACHE_DURATION=1"}
	}
	binary := ""
	if harness.Flavour() == "mysql" {
		binary = os.Getenv("CELLOG_MYSQLD")
	}
	var err error
	r.local, err = local.Start(t.Context(), local.Config{
		DataDir: filepath.Join(r.dir, "data"), Clusters: len(minions), Minions: minions, Flavour: mysqlserver.Flavour(harness.Flavour()), Binary: binary,
		KafkaBrokers: []string{"127.0.0.1:1"}, // ours is a process of its own
		Logger:       slog.New(slog.NewTextHandler(r.log("servers"), nil)),
		ServerEnv: func(node string) []string {
			if node == clockNode {
				return env
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// step sets the clock of clockNode so far off.
func (r *rig) step(off time.Duration) {
	r.t.Helper()
	if err := os.WriteFile(r.clock, fmt.Appendf(nil, "%+d\n", int(off.Seconds())), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) log(name string) io.Writer {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.Close() })
	return f
}

// startBroker starts the embedded broker as a process, or Apache Kafka.
func (r *rig) startBroker() {
	t := r.t
	t.Helper()
	if kafkatest.Real() {
		r.real = kafkatest.Start(t)
		t.Cleanup(kafkatest.Shutdown)
		r.config.Kafka.Brokers, r.config.Kafka.Prefix = r.real.Addrs(), kafkatest.Prefix(t)
		return
	}
	addr := harness.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr) // it was just made
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	p := r.addChild("broker", child{Kind: "broker", Dir: filepath.Join(r.dir, "kafka"), Port: n})
	p.up = func() error {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
	p.start()
	r.config.Kafka.Brokers = []string{addr}
}

// configure writes the configuration without links.
func (r *rig) configure() {
	t := r.t
	t.Helper()
	brokers, prefix := r.config.Kafka.Brokers, r.config.Kafka.Prefix
	r.config = config.Default()
	r.config.Kafka = config.Kafka{Brokers: brokers, Prefix: prefix}
	a := r.local.Accounts()
	account := func(role, user, password string) config.Account {
		env := "CELLOG_CHAOS_" + role
		t.Setenv(env, password)
		return config.Account{User: user, PasswordEnv: env}
	}
	accounts := config.Accounts{
		Worker: account("WORKER", a.Worker.User, a.Worker.Password), Tailer: account("TAILER", a.Tailer.User, a.Tailer.Password),
		Indexer: account("INDEXER", a.Indexer.User, a.Indexer.Password), Admin: account("ADMIN", a.Admin.User, a.Admin.Password),
	}
	for _, c := range r.local.Clusters() {
		cl := config.Cluster{Name: c.Name, Accounts: accounts}
		for _, n := range c.Nodes {
			cl.Nodes = append(cl.Nodes, config.Node{Name: n.Name, Addr: n.Addr})
		}
		r.config.Clusters = append(r.config.Clusters, cl)
	}
	schemas, err := filepath.Abs("../life/testdata/schemas")
	if err != nil {
		t.Fatal(err)
	}
	r.config.Indexer.Schemas = schemas
	r.file = r.write("cellog", r.config)
}

func (r *rig) write(name string, cfg config.Config) string {
	r.t.Helper()
	text, err := yaml.Marshal(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(r.dir, name+".yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// link adds a link from a process to an address.
func (r *rig) link(from, to, target string) *link {
	l := newLink(r.t, from, to, target)
	l.kafka = to == "broker"
	r.links = append(r.links, l)
	return l
}

// linkOf finds a link.
func (r *rig) linkOf(from, to string) *link {
	r.t.Helper()
	for _, l := range r.links {
		if l.from == from && l.to == to {
			return l
		}
	}
	r.t.Fatalf("no link %s-%s", from, to)
	return nil
}

// through is the configuration of a process with links of its own.
func (r *rig) through(name string) config.Config {
	cfg := r.config
	cfg.Kafka.Brokers = []string{r.link(name, "broker", r.config.Kafka.Brokers[0]).addr()}
	cfg.Clusters = nil
	for _, c := range r.config.Clusters {
		nodes := c.Nodes
		c.Nodes = nil
		for _, n := range nodes {
			c.Nodes = append(c.Nodes, config.Node{Name: n.Name, Addr: r.link(name, n.Name, n.Addr).addr()})
		}
		cfg.Clusters = append(cfg.Clusters, c)
	}
	return cfg
}

func (r *rig) startRoles() {
	t := r.t
	t.Helper()
	for role, n := range map[string]int{"worker": workers, "tailer": tailers, "indexer": 1} {
		for i := range n {
			r.addRole(role, fmt.Sprintf("%s%d", role, i+1))
		}
	}
	brokers := r.link("trigger1", "broker", r.config.Kafka.Brokers[0]).addr()
	r.addChild("trigger1", child{Kind: "trigger", Brokers: []string{brokers}, Prefix: r.config.Kafka.Prefix, Notes: r.notes})
	for _, p := range r.procs {
		if p.cmd == nil {
			p.start()
		}
	}
	for _, p := range r.procs {
		p.await()
	}
}

// addRole adds a process of a role. The workers reach each other through links
// too: all others share the one in front of a worker.
func (r *rig) addRole(role, name string) {
	t := r.t
	t.Helper()
	cfg := r.through(name)
	cfg.Admin.Listen = harness.FreeAddr(t)
	if role == "worker" {
		cfg.Worker.Listen = harness.FreeAddr(t)
		cfg.Worker.Advertise = "http://" + r.link("peers", name, cfg.Worker.Listen).addr()
	}
	file := r.write(name, cfg)
	var p *process
	if r.broken.role == role {
		p = r.addChild(name, child{Kind: role, Config: file, Plant: r.broken.point, StopAt: r.broken.stopAt, Stop: r.stopFile()})
	} else {
		p = r.add(name, harness.Binary, nil, role, "run", "--config", file)
	}
	p.url = "http://" + cfg.Worker.Listen
	p.up = func() error {
		path := "/livez"
		if role == "worker" {
			path = "/readyz"
		}
		resp, err := http.Get("http://" + cfg.Admin.Listen + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s: %s (%v)", name, resp.Status, text, err)
		}
		return nil
	}
}

// stopFile makes a broken process stop itself, see child.
func (r *rig) stopFile() string { return filepath.Join(r.dir, "stop") }

func (r *rig) addChild(name string, c child) *process {
	r.t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.add(name, os.Args[0], []string{childEnv + "=" + string(text)})
}

func (r *rig) add(name, binary string, env []string, args ...string) *process {
	r.t.Helper()
	p := &process{t: r.t, name: name, binary: binary, env: env, args: args, log: r.log(name), up: func() error { return nil }}
	r.procs = append(r.procs, p)
	return p
}

// role returns the processes of a role.
func (r *rig) role(role string) (out []*process) {
	for _, p := range r.procs {
		if strings.TrimRight(p.name, "0123456789") == role {
			out = append(out, p)
		}
	}
	return out
}

// nodes are the servers as they now are.
func (r *rig) nodes() (out []local.Node) {
	for _, c := range r.local.Clusters() {
		for _, n := range c.Nodes {
			if !r.gone[n.Name] {
				out = append(out, n)
			}
		}
	}
	return out
}

func (r *rig) node(name string) local.Node {
	r.t.Helper()
	for _, n := range r.nodes() {
		if n.Name == name {
			return n
		}
	}
	r.t.Fatalf("no node %s", name)
	return local.Node{}
}

// names lists the nodes of a role.
func (r *rig) names(role string) (out []string) {
	for _, n := range r.nodes() {
		if n.Role == role {
			out = append(out, n.Name)
		}
	}
	return out
}

// brokerPID is the broker's process.
func (r *rig) brokerPID() int {
	if r.real != nil {
		return r.real.PID()
	}
	return r.role("broker")[0].pid()
}

// restartBroker kills the broker and starts it again.
func (r *rig) restartBroker() {
	r.t.Helper()
	if r.real != nil {
		r.real.Kill(r.t)
		r.real.Restart(r.t)
		return
	}
	p := r.role("broker")[0]
	p.kill()
	p.start()
	p.await()
}

// awaitServers waits until every server runs, as another process than those.
func (r *rig) awaitServers(killed ...int) {
	r.t.Helper()
	harness.WaitFor(r.t, 2*time.Minute, func() error {
		for _, n := range r.nodes() {
			for _, pid := range killed {
				if n.PID == pid {
					return fmt.Errorf("%s (%d) is not back", n.Name, pid)
				}
			}
		}
		return r.local.Ready()
	})
	r.replicateThroughLinks()
}

// replicateThroughLinks points the minions to their links to the masters, for
// the server's supervisor points them to the masters themselves.
func (r *rig) replicateThroughLinks() {
	t := r.t
	t.Helper()
	for _, c := range r.local.Clusters() {
		for _, n := range c.Nodes {
			if n.Role == local.Master || r.gone[n.Name] || r.gone[c.Nodes[0].Name] {
				continue
			}
			var l *link
			for _, have := range r.links {
				if have.from == n.Name {
					l = have
				}
			}
			if l == nil {
				l = r.link(n.Name, c.Nodes[0].Name, c.Nodes[0].Addr)
			}
			harness.WaitFor(t, time.Minute, func() error { return follow(t.Context(), n, l.addr()) })
		}
	}
}
