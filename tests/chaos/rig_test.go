package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
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
type broken struct {
	role, point string
	// stopAt is where a tailer stops itself, see child.
	stopAt string
}

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

	procs  []*process // roles, trigger and embedded broker
	links  []*harness.Link
	disks  map[string]string // by node: its file system of its own
	clock  string            // the file that steps a server's clock; empty: none
	owners *owners
	gone   map[string]bool // nodes that are no live hosts any more, or not now
	down   holds           // servers that are not to come back yet
	admin  string          // the configuration of who promotes and rejoins, through links
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
	r := &rig{t: t, dir: dir, broken: b, notes: filepath.Join(dir, "notes"), disks: map[string]string{}, gone: map[string]bool{}, owners: newOwners()}
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
	r.down.end()
	if r.local != nil {
		clear(r.gone)
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
		Replica: account("REPLICA", a.Replica.User, a.Replica.Password),
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
func (r *rig) link(from, to, target string) *harness.Link {
	make := harness.NewLink
	if to == "broker" {
		make = harness.NewKafkaLink
	}
	l := make(r.t, from, to, target)
	r.links = append(r.links, l)
	return l
}

// linkOf finds a link.
func (r *rig) linkOf(from, to string) *harness.Link {
	r.t.Helper()
	for _, l := range r.links {
		if l.From == from && l.To == to {
			return l
		}
	}
	r.t.Fatalf("no link %s-%s", from, to)
	return nil
}

// through is the configuration of a process with links of its own.
func (r *rig) through(name string) config.Config {
	cfg := r.config
	cfg.Kafka.Brokers = []string{r.link(name, "broker", r.config.Kafka.Brokers[0]).Addr()}
	cfg.Clusters = nil
	for _, c := range r.config.Clusters {
		nodes := c.Nodes
		c.Nodes = nil
		for _, n := range nodes {
			c.Nodes = append(c.Nodes, config.Node{Name: n.Name, Addr: r.link(name, n.Name, n.Addr).Addr()})
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
	r.admin = r.write("admin", r.through("admin"))
	r.addChild("keeper1", child{Kind: "keeper", Config: r.write("keeper1", r.through("keeper1"))})
	brokers := r.link("trigger1", "broker", r.config.Kafka.Brokers[0]).Addr()
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
		cfg.Worker.Advertise = "http://" + r.link("peers", name, cfg.Worker.Listen).Addr()
	}
	b := r.broken
	file := r.write(name, cfg)
	var p *process
	if b.role == role || role == "tailer" && b.stopAt != "" {
		c := child{Kind: role, Config: file, StopAt: b.stopAt, Stop: r.stopFile()}
		if b.role == role {
			c.Plant = b.point
		}
		p = r.addChild(name, c)
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
// they were pointed to the masters themselves, or to somebody else's links.
func (r *rig) replicateThroughLinks() {
	t := r.t
	t.Helper()
	for _, c := range r.local.Clusters() {
		for _, n := range c.Nodes {
			if n.Role == local.Master || r.gone[n.Name] || r.gone[c.Nodes[0].Name] {
				continue
			}
			var l *harness.Link
			for _, have := range r.links {
				if have.From == n.Name && have.To == c.Nodes[0].Name {
					l = have
				}
			}
			if l == nil { // the first time that it follows this one
				l = r.link(n.Name, c.Nodes[0].Name, c.Nodes[0].Addr)
			}
			harness.WaitFor(t, time.Minute, func() error { return follow(t.Context(), n, l.Addr()) })
		}
	}
}
