package local

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cellog/cellog/internal/mysqlserver"
)

// The wait before a server is started again doubles from restartFirst to
// Config.RestartWait. One that lived for restartCalm starts at restartFirst again: a
// server that comes up and falls over is no reason for a busy loop.
const (
	restartFirst = 100 * time.Millisecond
	restartCalm  = 30 * time.Second
)

// supervise brings node i back whenever its server ends by itself, until ctx
// ends.
func (c *cluster) supervise(ctx context.Context, i int) {
	name := c.state.Nodes[i].Name
	log := c.cfg.Logger.With("node", name)
	first := min(restartFirst, c.cfg.RestartWait)
	wait, since := first, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.server(i).Done():
		}
		err := c.server(i).Err()
		if err == nil {
			return // it was stopped
		}
		if time.Since(since) > restartCalm {
			wait = first
		}
		log.Error("a private server has ended, starting it again", "error", err)
		for ; err != nil; wait = min(2*wait, c.cfg.RestartWait) {
			c.setDown(name, err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if err = c.restartNode(ctx, i); err != nil && ctx.Err() == nil {
				log.Error("the private server cannot be started again yet", "error", err)
			}
		}
		since = time.Now()
		c.setDown(name, nil)
		s := c.server(i)
		log.Info("the private server is up again", "addr", s.Addr(), "pid", s.PID())
		if c.cfg.Restarted != nil {
			c.cfg.Restarted()
		}
	}
}

// restartNode starts the server of node i, on its old port, since everybody
// knows that one, and makes it what it was.
func (c *cluster) restartNode(ctx context.Context, i int) error {
	s := c.server(i)
	select {
	case <-s.Done():
		var err error
		if s, err = mysqlserver.Start(ctx, c.serverConfig(i)); err != nil {
			return err
		}
		c.setServer(i, s)
	default: // it is up, but what follows failed
	}
	return c.settle(ctx, i)
}

func (c *cluster) setDown(node string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down == nil {
		c.down = map[string]error{}
	}
	c.down[node] = err
}

// ready returns which nodes are down, in their order.
func (c *cluster) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, n := range c.state.Nodes {
		if err := c.down[n.Name]; err != nil {
			first, _, _ := strings.Cut(err.Error(), "\n") // the server's own log may follow
			errs = append(errs, fmt.Errorf("node %s is down and being started again: %s", n.Name, first))
		}
	}
	return errors.Join(errs...)
}
