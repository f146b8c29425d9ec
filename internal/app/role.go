package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/obs"
)

// stopTimeout bounds the stop of a role's process.
const stopTimeout = 20 * time.Second

// Role is a part of cellog that runs as a process of its own in production.
type Role interface {
	// Start returns when the role is up, or why it is not.
	Start(ctx context.Context) error
	// Stop finishes what is in hand.
	Stop(ctx context.Context) error
	// Ready returns nil, or why the role cannot do its work now.
	Ready(ctx context.Context) error
	// Failed gets the error of a role that ended by itself; nil if it cannot.
	Failed() <-chan error
}

// Failed is nil: tailers start anew by themselves.
func (t *Tailers) Failed() <-chan error { return nil }

// Run runs one role with its admin server until ctx ends or the role fails. up
// is called when both serve.
func Run(ctx context.Context, cfg *config.Config, env Env, name string, build func(*config.Config, Env) (Role, error), up func(admin string)) (err error) {
	admin, err := obs.New(obs.Config{Listen: cfg.Admin.Listen, PProf: cfg.Admin.PProf, Log: env.Log})
	if err != nil {
		return err
	}
	env.Registry = admin.Registry()
	role, err := build(cfg, env)
	if err != nil {
		return err
	}
	admin.AddCheck(name, role.Ready)
	// The probes answer while the role still starts.
	if err := admin.Start(ctx); err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, role.Stop(stop), admin.Stop(stop))
	}()
	if err := startPatiently(ctx, role, name, env); err != nil {
		return err
	}
	if up != nil {
		up("http://" + admin.Addr())
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-role.Failed():
		return err
	case err := <-admin.Err():
		return fmt.Errorf("admin server: %w", err)
	}
}

// startPatiently starts a role, again and again while its servers are away: a
// process that a supervisor restarts at once would only spin.
func startPatiently(ctx context.Context, role Role, name string, env Env) error {
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := role.Start(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		env.log().Warn("cannot start yet", "role", name, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}
