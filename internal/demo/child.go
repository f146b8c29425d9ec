package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Kill is one kill of the billing process.
type Kill struct {
	// Key is the charge that was in the gateway's books, but not answered.
	Key string `json:"key"`
	// StatusWasThere says that its STATUS cell was written already: then the
	// kill did not come between charge and STATUS.
	StatusWasThere bool `json:"status_was_there"`
}

// child keeps a billing process running, and kills it when told.
type child struct {
	command func() *exec.Cmd
	// hasStatus reports whether the STATUS cell of a charge exists.
	hasStatus func(ctx context.Context, key string) (bool, error)
	quit      chan struct{} // closed to let the process end in good order
	quitOnce  sync.Once

	mu    sync.Mutex
	cmd   *exec.Cmd // the running one
	kills []Kill
	key   string // the charge for which the running one was killed
}

// errRestarts ends a demo whose billing process does not stay.
var errRestarts = errors.New("the billing process ended five times in a row within a second of its start")

// run starts the process, and again when it ends, until quit is closed or ctx
// ends.
func (c *child) run(ctx context.Context) error {
	// The kernel kills the process when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	quick := 0
	for {
		cmd := c.command()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		// An interrupt from the terminal is for us alone: we stop it in order.
		cmd.SysProcAttr.Pdeathsig, cmd.SysProcAttr.Setpgid = syscall.SIGKILL, true
		started := time.Now()
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("billing process: %w", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		c.set(cmd)
		select {
		case <-ctx.Done():
			_ = cmd.Process.Kill() // it may have ended
			<-ended
			return nil
		case <-c.quit:
			return stop(cmd, ended)
		case err := <-ended:
			key := c.clear()
			if key == "" {
				if quick++; time.Since(started) > time.Second {
					quick = 0
				}
				if quick >= 5 {
					return fmt.Errorf("%w: %w", errRestarts, err)
				}
				continue
			}
			if err := c.killed(ctx, key); err != nil {
				return err
			}
		}
	}
}

// stop asks the process to finish, and insists after a while.
func stop(cmd *exec.Cmd, ended <-chan error) error {
	_ = cmd.Process.Signal(os.Interrupt) // it may have ended
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("billing process: %w", err)
		}
		return nil
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		return errors.New("billing process: it did not end within 20 s of being asked to")
	}
}

// kill kills the process with -9 in the middle of a charge; the gateway calls
// it.
func (c *child) kill(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		c.key = key
		_ = c.cmd.Process.Kill() // it may have ended
	}
}

// killed looks, before a new process starts, whether the STATUS was written.
func (c *child) killed(ctx context.Context, key string) error {
	there, err := c.hasStatus(ctx, key)
	if err != nil {
		return fmt.Errorf("look for STATUS after a kill: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kills = append(c.kills, Kill{key, there})
	return nil
}

func (c *child) set(cmd *exec.Cmd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cmd = cmd
}

func (c *child) clear() (key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, c.key, c.cmd = c.key, "", nil
	return key
}

func (c *child) done() { c.quitOnce.Do(func() { close(c.quit) }) }

// all returns the kills so far.
func (c *child) all() []Kill {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Kill(nil), c.kills...)
}
