package local

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlserver"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "dev" {
		os.Exit(devProcess(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

func config(dir string) Config {
	c := Config{DataDir: dir, Flavour: mysqlserver.MariaDB}
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		c.Flavour = mysqlserver.Flavour(f)
	}
	return c
}

func start(t *testing.T, cfg Config) *Local {
	t.Helper()
	l, err := Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, l) })
	return l
}

func stop(t *testing.T, l *Local) {
	t.Helper()
	if err := l.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, addr, user, password string) *sql.DB {
	t.Helper()
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: addr, User: user, Password: password, KeepReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// admin opens a node of a cluster as admin.
func admin(t *testing.T, l *Local, cluster, node int) *sql.DB {
	t.Helper()
	n := l.Clusters()[cluster].Nodes[node]
	return open(t, n.Addr, n.User, n.Password)
}

// count waits until a node holds so many rows.
func count(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	waitFor(t, 30*time.Second, func() error {
		var n int
		if err := db.QueryRow("SELECT COUNT(*) FROM d.t").Scan(&n); err != nil {
			return err
		}
		if n < want {
			return fmt.Errorf("%d rows, want %d", n, want)
		}
		return nil
	})
}

func waitFor(t *testing.T, max time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(max)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const makeTable = "CREATE DATABASE IF NOT EXISTS d"

func makeTables(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, q := range []string{makeTable, "CREATE TABLE IF NOT EXISTS d.t (id INT PRIMARY KEY)"} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStartStopAndStartAgain(t *testing.T) {
	dir := t.TempDir()
	l := start(t, config(dir))
	var shape []string
	for _, c := range l.Clusters() {
		for _, n := range c.Nodes {
			shape = append(shape, c.Name+"/"+n.Name+"/"+n.Role)
		}
	}
	if want := []string{"c1/c1a/master", "c1/c1b/minion", "c2/c2a/master", "c2/c2b/minion"}; !reflect.DeepEqual(shape, want) {
		t.Errorf("nodes %v, want %v", shape, want)
	}
	for _, name := range []string{"secrets", "topology.json"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	makeTables(t, admin(t, l, 1, 0))
	if _, err := admin(t, l, 1, 0).Exec("INSERT INTO d.t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	count(t, admin(t, l, 1, 1), 1)
	for c := range l.Clusters() { // every account, everywhere
		for n, node := range l.Clusters()[c].Nodes {
			var readOnly bool
			if err := admin(t, l, c, n).QueryRow("SELECT @@global.read_only").Scan(&readOnly); err != nil || readOnly != (node.Role == Minion) {
				t.Errorf("%s: read_only %v, %v", node.Name, readOnly, err)
			}
			a := l.Accounts()
			for user, password := range map[string]string{a.Worker.User: a.Worker.Password, a.Tailer.User: a.Tailer.Password, a.Indexer.User: a.Indexer.Password} {
				if err := open(t, node.Addr, user, password).Ping(); err != nil {
					t.Errorf("%s as %s: %v", node.Name, user, err)
				}
			}
		}
	}
	if _, err := Start(context.Background(), config(dir)); !errors.Is(err, ErrInUse) {
		t.Errorf("a second one: %v, want ErrInUse", err)
	} else {
		t.Log(err)
	}
	before, kafka, accounts := l.Clusters(), l.KafkaAddrs(), l.Accounts()
	stop(t, l)

	// One server finds its port taken, the others get theirs back.
	taken, err := net.Listen("tcp", before[1].Nodes[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	l = start(t, config(dir))
	for c, cl := range l.Clusters() {
		for n, node := range cl.Nodes {
			same := node.Addr == before[c].Nodes[n].Addr
			if same == (node.Name == "c2a") {
				t.Errorf("%s: %s, before %s", node.Name, node.Addr, before[c].Nodes[n].Addr)
			}
		}
	}
	if !reflect.DeepEqual(kafka, l.KafkaAddrs()) || l.Accounts() != accounts {
		t.Errorf("broker %v, before %v; or other accounts", l.KafkaAddrs(), kafka)
	}
	if _, err := admin(t, l, 1, 0).Exec("INSERT INTO d.t VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	count(t, admin(t, l, 1, 1), 2)
	stop(t, l)

	for name, change := range map[string]func(*Config){
		"clusters":    func(c *Config) { c.Clusters = 3 },
		"two of each": func(c *Config) { c.Minions = []int{1, 2} },
		"minions":     func(c *Config) { c.Minions = []int{0} },
		"flavour": func(c *Config) {
			if c.Flavour = mysqlserver.MySQL; l.topology.Flavour == mysqlserver.MySQL {
				c.Flavour = mysqlserver.MariaDB
			}
		},
	} {
		cfg := config(dir)
		change(&cfg)
		if _, err := Start(context.Background(), cfg); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s changed: %v, want ErrMismatch", name, err)
		}
	}
}

// devProcess is a cellog dev that writes to the first cluster until it is
// killed, and says what was acknowledged.
func devProcess(dir string) int {
	l, err := Start(context.Background(), config(dir))
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	for _, c := range l.Clusters() {
		for _, n := range c.Nodes {
			fmt.Println("pid", n.PID)
		}
	}
	n := l.Clusters()[0].Nodes[0]
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: n.Addr, User: n.User, Password: n.Password})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	for _, q := range []string{makeTable, "CREATE TABLE IF NOT EXISTS d.t (id INT PRIMARY KEY)"} {
		if _, err := db.Exec(q); err != nil {
			fmt.Println("error", err)
			return 1
		}
	}
	var next int
	if err := db.QueryRow("SELECT COALESCE(MAX(id), 0) FROM d.t").Scan(&next); err != nil {
		fmt.Println("error", err)
		return 1
	}
	for {
		next++
		if _, err := db.Exec("INSERT INTO d.t VALUES (" + strconv.Itoa(next) + ")"); err != nil {
			fmt.Println("error", err)
			return 1
		}
		fmt.Println("row", next)
	}
}

func TestKillOfAllLosesNothingAndLeavesNoOrphan(t *testing.T) {
	dir := t.TempDir()
	last := 0
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "dev", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var pids []int
		rows := 0
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			kind, value, _ := strings.Cut(sc.Text(), " ")
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Errorf("round %d: %s", round, sc.Text())
				break
			}
			if kind == "pid" {
				pids = append(pids, n)
				continue
			}
			last = max(last, n)
			if rows++; rows == 50 { // and what comes until it is dead
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			return
		}
		for _, pid := range pids {
			waitFor(t, 10*time.Second, func() error {
				if gone(pid) {
					return nil
				}
				return fmt.Errorf("round %d: server %d lives on", round, pid)
			})
		}
	}
	l := start(t, config(dir))
	count(t, admin(t, l, 0, 0), last)
	if _, err := admin(t, l, 0, 0).Exec("INSERT INTO d.t VALUES (1000000)"); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := admin(t, l, 0, 0).QueryRow("SELECT COUNT(*) FROM d.t").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	count(t, admin(t, l, 0, 1), rows)
	t.Logf("%d rows", rows)
}

// gone reports that no process has the pid, or only one that nobody waited for.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

func TestServersThatEndComeBack(t *testing.T) {
	cfg := config(t.TempDir())
	back := make(chan struct{}, 8)
	cfg.Clusters, cfg.Minions, cfg.KafkaBrokers = 1, []int{1}, []string{"127.0.0.1:1"}
	cfg.Restarted = func() { back <- struct{}{} }
	l := start(t, cfg)
	if got := l.KafkaAddrs(); !reflect.DeepEqual(got, []string{"127.0.0.1:1"}) {
		t.Errorf("kafka %v", got)
	}
	makeTables(t, admin(t, l, 0, 0))
	before := l.Clusters()[0]
	rows := 0
	for _, kill := range [][]int{{0}, {1}, {0, 1}} {
		for _, node := range kill {
			if err := syscall.Kill(l.Clusters()[0].Nodes[node].PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, 10*time.Second, func() error {
			if err := l.Ready(); err == nil || !strings.Contains(err.Error(), before.Nodes[kill[0]].Name) {
				return fmt.Errorf("kill of %v: ready: %v, want the node's name", kill, err)
			}
			return nil
		})
		for range kill {
			select {
			case <-back:
			case <-time.After(time.Minute):
				t.Fatal("it did not come back: ", l.Ready())
			}
		}
		if err := l.Ready(); err != nil {
			t.Error(err)
		}
		for i, n := range l.Clusters()[0].Nodes {
			was := before.Nodes[i]
			if n.Addr != was.Addr || n.Role != was.Role {
				t.Errorf("%s is a %s at %s, was a %s at %s", n.Name, n.Role, n.Addr, was.Role, was.Addr)
			}
		}
		// The master takes writes again, and the minion gets them and takes none.
		rows++
		if _, err := admin(t, l, 0, 0).Exec("INSERT INTO d.t VALUES (?)", rows); err != nil {
			t.Fatal(err)
		}
		count(t, admin(t, l, 0, 1), rows)
		var readOnly bool
		if err := admin(t, l, 0, 1).QueryRow("SELECT @@global.read_only").Scan(&readOnly); err != nil || !readOnly {
			t.Errorf("the minion: read_only %v, %v", readOnly, err)
		}
	}
}

func TestAServerThatCannotComeBackIsTriedUntilItCan(t *testing.T) {
	cfg := config(t.TempDir())
	back := make(chan struct{}, 1)
	cfg.Clusters, cfg.Minions, cfg.KafkaBrokers = 1, []int{0}, []string{"127.0.0.1:1"}
	cfg.Restarted = func() { back <- struct{}{} }
	l := start(t, cfg)
	mark := filepath.Join(cfg.DataDir, "clusters", "c1", "c1a", "flavour")
	if err := os.Rename(mark, mark+".away"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(l.Clusters()[0].Nodes[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 10*time.Second, func() error {
		if err := l.Ready(); err == nil || !strings.Contains(err.Error(), "flavour") {
			return fmt.Errorf("ready: %v, want why it cannot start", err)
		}
		return nil
	})
	if err := os.Rename(mark+".away", mark); err != nil {
		t.Fatal(err)
	}
	select {
	case <-back:
	case <-time.After(time.Minute):
		t.Fatal("it did not come back: ", l.Ready())
	}
	if err := l.Ready(); err != nil {
		t.Error(err)
	}
}

func TestBadConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"data_dir":  {},
		"clusters":  {DataDir: "x", Clusters: 17},
		"minions":   {DataDir: "x", Minions: []int{-1}},
		"clusters ": {DataDir: "x", Clusters: 2, Minions: []int{1, 2, 3}},
		"flavour":   {DataDir: "x", Flavour: "oracle"},
	} {
		if _, err := Start(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
