package triggers

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cellog/cellog/internal/feed"
)

// Runtime runs registered functions: a watermill router with one handler, and
// one consumer group, per trigger.
type Runtime struct {
	cfg Config
	m   *metrics

	mu       sync.Mutex
	ran      bool
	triggers []*trigger
	subs     map[string]*Subscriber // by trigger name, once Run has begun
	beats    feed.Heartbeats
	running  chan struct{}
}

// New returns a Runtime without triggers.
func New(cfg Config) (*Runtime, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Runtime{cfg: cfg, subs: make(map[string]*Subscriber), running: make(chan struct{})}, nil
}

// On registers a function for every cell of a column, or of AllColumns. The
// name is the trigger's for ever: its consumer group, so how far it is, hangs
// on it. On must be called before Run.
func (r *Runtime) On(datastore, column, name string, fn Func, options ...Option) error {
	t := &trigger{name: name, datastore: datastore, column: column, fn: fn, backoffMin: 50 * time.Millisecond, backoffMax: 30 * time.Second}
	for _, o := range options {
		o(t)
	}
	if err := t.validate(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ran {
		return fmt.Errorf("trigger %s: registered after Run", name)
	}
	for _, other := range r.triggers {
		if other.name == name {
			return fmt.Errorf("trigger %s: the name is taken, and would share the other one's progress", name)
		}
	}
	r.triggers = append(r.triggers, t)
	return nil
}

// Group returns the consumer group of a trigger.
func (r *Runtime) Group(name string) string { return r.cfg.Prefix + "cellog.trigger." + name }

// Run runs the triggers until ctx ends; then functions have Drain to finish,
// what they finished is committed, and Run returns nil. A Runtime runs once.
func (r *Runtime) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.ran {
		r.mu.Unlock()
		return errors.New("triggers: Run was called before")
	}
	r.ran = true
	r.mu.Unlock()
	if len(r.triggers) == 0 {
		return errors.New("triggers: none is registered")
	}

	logger := watermill.NewSlogLogger(r.cfg.Logger)
	// The subscribers end by Drain; the router must not give up before them.
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: r.cfg.Drain + time.Minute}, quiet{logger})
	if err != nil {
		return fmt.Errorf("triggers: %w", err)
	}
	r.m = newMetrics(r.cfg.Registerer, r.Lag)
	defer r.m.unregister(r.cfg.Registerer)
	for _, t := range r.triggers {
		sub, err := NewSubscriber(SubscriberConfig{
			Brokers: r.cfg.Brokers, ClientID: r.cfg.ClientID, Group: r.Group(t.name), From: t.from,
			Parallel: t.parallel, Window: t.window, Drain: r.cfg.Drain,
			BackoffMin: t.backoffMin, BackoffMax: t.backoffMax,
			SessionTimeout: r.cfg.SessionTimeout,
			Logger:         r.cfg.Logger.With("trigger", t.name), Registerer: r.cfg.Registerer,
		})
		if err != nil {
			return fmt.Errorf("trigger %s: %w", t.name, err)
		}
		r.mu.Lock()
		r.subs[t.name] = sub
		r.mu.Unlock()
		router.AddConsumerHandler(t.name, t.topic(r.cfg.Prefix), sub, r.handler(t))
	}

	var following sync.WaitGroup
	follow, stop := context.WithCancel(ctx)
	following.Go(func() { r.beats.Follow(follow, r.cfg.kafka(), r.cfg.Prefix, r.cfg.Logger) })
	defer following.Wait()
	defer stop()
	go func() {
		select {
		case <-router.Running():
			close(r.running)
		case <-follow.Done():
		}
	}()
	if err := router.Run(ctx); err != nil {
		return fmt.Errorf("triggers: %w", err)
	}
	return nil
}

// Running is closed once all triggers have subscribed.
func (r *Runtime) Running() <-chan struct{} { return r.running }

// handler runs a trigger's function on a message. A panic is a failure.
func (r *Runtime) handler(t *trigger) message.NoPublishHandlerFunc {
	delay := r.m.delay.WithLabelValues(t.name)
	return func(m *message.Message) (err error) {
		d, ok := m.Context().Value(deliveredKey{}).(*delivered)
		if !ok {
			return errors.New("the message did not come from a Subscriber of this package")
		}
		defer func() {
			if v := recover(); v != nil {
				err = &feed.PanicError{Value: v, Stack: debug.Stack()}
			}
			if err != nil {
				d.fail(err)
			}
		}()
		if d.Delivery.Attempt == 1 {
			delay.Observe(time.Since(d.CreatedAt).Seconds())
		}
		return t.fn(m.Context(), d.Cell)
	}
}

// Err returns what stopped partitions of triggers; nil when all go on.
func (r *Runtime) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for name, sub := range r.subs {
		for _, f := range sub.feeds() {
			if stopped := f.Err(); stopped != nil {
				err = errors.Join(err, fmt.Errorf("trigger %s: %w", name, stopped))
			}
		}
	}
	return err
}

// Lag returns, per trigger, the age of its oldest unfinished cell or, when it
// has none, of the newest heartbeat that came through Kafka from every
// cluster; so it is true when idle and when anything before it is stuck. It
// has no entry for a trigger while no heartbeat was seen and nothing is
// unfinished.
func (r *Runtime) Lag() map[string]time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	lags := make(map[string]time.Duration)
	for name, sub := range r.subs {
		since, known := r.beats.Oldest()
		for _, f := range sub.feeds() {
			if t, ok := f.Oldest(); ok && (!known || t.Before(since)) {
				since, known = t, true
			}
		}
		if known {
			lags[name] = max(0, now.Sub(since))
		}
	}
	return lags
}

// quiet keeps watermill's notes of each failure out of the log: the feed logs
// it with the cell, and the error may be long.
type quiet struct{ watermill.LoggerAdapter }

// Error drops what the feed says better.
func (q quiet) Error(msg string, err error, fields watermill.LogFields) {
	if msg != "Handler returned error" {
		q.LoggerAdapter.Error(msg, err, fields)
	}
}

// Info drops watermill's notes of its life.
func (quiet) Info(string, watermill.LogFields) {}

// With keeps it quiet.
func (q quiet) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return quiet{q.LoggerAdapter.With(fields)}
}
