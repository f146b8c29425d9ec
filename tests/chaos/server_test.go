package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/mysqlconn"
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
