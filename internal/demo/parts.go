package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// parts are goroutines that belong to a run: the first one that fails ends
// all.
type parts struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	ends map[string]chan struct{}
	err  error
}

// start returns parts, and a function that ends and awaits them.
func start(ctx context.Context) (*parts, func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &parts{ctx: ctx, cancel: cancel, ends: make(map[string]chan struct{})}
	return p, func() error {
		cancel(context.Canceled)
		p.wg.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err
	}
}

func (p *parts) run(name string, fn func(ctx context.Context) error) {
	end := make(chan struct{})
	p.ends[name] = end
	p.wg.Go(func() {
		defer close(end)
		err := fn(p.ctx)
		if err == nil || p.ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return
		}
		err = fmt.Errorf("%s: %w", name, err)
		p.mu.Lock()
		p.err = errors.Join(p.err, err)
		p.mu.Unlock()
		p.cancel(err)
	})
}

// wait waits for a part to end by itself.
func (p *parts) wait(name string) error {
	select {
	case <-p.ends[name]:
		return nil
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}
