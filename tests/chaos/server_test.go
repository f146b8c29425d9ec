package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/tests/harness"
)

// exitCmd is a child process and how it ended.
type exitCmd struct {
	*exec.Cmd
	done chan struct{} // closed when it is gone
	err  error         // written before
}

// startCmd starts a child that dies with this process.
func startCmd(binary string, args, env []string, log io.Writer) (*exitCmd, error) {
	c := &exitCmd{Cmd: exec.Command(binary, args...), done: make(chan struct{})}
	c.Env, c.Stdout, c.Stderr = env, log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel sends Pdeathsig when the thread that made the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			c.err = c.Wait()
			close(c.done)
		}
	}()
	return c, <-started
}

// asRoot opens sessions of root, through the socket: no link is in between.
func asRoot(n local.Node) (*sql.DB, error) {
	return mysqlconn.Open(mysqlconn.Config{Addr: n.Socket, User: "root", MaxOpen: 2})
}

// spoken chooses the statement for the flavour of the run.
func spoken(mariadb, mysql string) string {
	if harness.Flavour() == "mysql" {
		return mysql
	}
	return mariadb
}

// run executes statements one by one.
func run(ctx context.Context, n local.Node, statements ...string) error {
	db, err := asRoot(n)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %s: %w", n.Name, q, err)
		}
	}
	return nil
}

// ask scans the one row of a query.
func ask(ctx context.Context, n local.Node, query string, dest ...any) error {
	db, err := asRoot(n)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, query).Scan(dest...); err != nil {
		return fmt.Errorf("%s: %s: %w", n.Name, query, err)
	}
	return nil
}

// replica returns fields of a minion's replication status.
func replica(ctx context.Context, n local.Node) (map[string]string, error) {
	db, err := asRoot(n)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, spoken("SHOW SLAVE STATUS", "SHOW REPLICA STATUS"))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	if !rows.Next() {
		return nil, fmt.Errorf("%s follows nobody", n.Name)
	}
	values, dest := make([]sql.RawBytes, len(names)), make([]any, len(names))
	for i := range values {
		dest[i] = &values[i]
	}
	if err := rows.Scan(dest...); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i, name := range names {
		out[name] = string(values[i])
	}
	return out, nil
}

// follow has a minion replicate from an address, unless it does.
func follow(ctx context.Context, n local.Node, addr string) error {
	status, err := replica(ctx, n)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil || status[spoken("Master_Port", "Source_Port")] == port {
		return err
	}
	return run(ctx, n, spoken("STOP SLAVE", "STOP REPLICA"),
		spoken("CHANGE MASTER TO MASTER_PORT="+port, "CHANGE REPLICATION SOURCE TO SOURCE_PORT="+port),
		spoken("START SLAVE", "START REPLICA"))
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
		// The fix is for an old glibc: with a newer one, it makes MySQL's threads
		// spin, which wait by the monotonic clock (libfaketime's README).
		env = []string{"LD_PRELOAD=" + lib, "FAKETIME_TIMESTAMP_FILE=" + r.clock, "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_CACHE_DURATION=1", "FAKETIME_FORCE_MONOTONIC_FIX=0"}
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
		// Who is writable is the keeper's business, as in cellog dev.
		LeaveReadOnly: true,
		RestartWait:   200 * time.Millisecond, // killing them is our business
		ServerEnv: func(node string) []string {
			r.down.wait(node)
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
