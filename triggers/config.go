package triggers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
)

// AllColumns, as the column of On, makes the trigger read the datastore's
// merged topic: every column, and whole-row order.
const AllColumns = "_all"

// Func is called with one cell at a time of a row, in the row's order. An
// error, or a panic, makes the same cell come again after a while; later cells
// of the row wait for it, other rows do not. The context ends when the
// function's result will no longer count: return then.
type Func func(ctx context.Context, c cellog.Cell) error

// Config says where the cells come from.
type Config struct {
	// Brokers are host:port addresses of brokers to ask first. Required.
	Brokers []string
	// ClientID names this process in the brokers' logs. Default "cellog".
	ClientID string
	// Prefix is the prefix of topic names and of consumer group names.
	Prefix string
	// SessionTimeout is how long a dead member keeps its partitions. Default
	// 10 s; brokers refuse less than 6 s unless set otherwise.
	SessionTimeout time.Duration
	// Drain is how long functions may go on when their partition goes to
	// another member, or at the end. Default 10 s.
	Drain time.Duration
	// Logger; nil discards.
	Logger *slog.Logger
	// Registerer gets the metrics; nil for none.
	Registerer Registerer
}

func (c Config) withDefaults() Config {
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) kafka() kafka.Config {
	return kafka.Config{Addrs: c.Brokers, ClientID: c.ClientID, Logger: c.Logger}
}

func (c Config) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("triggers: Brokers is empty: want at least one host:port")
	case c.SessionTimeout < 0 || c.Drain < 0:
		return errors.New("triggers: SessionTimeout and Drain must not be negative")
	}
	return nil
}

// Option changes one trigger.
type Option func(*trigger)

// FromZero starts a new trigger at the first cell ever written. It is the
// default.
func FromZero() Option { return func(t *trigger) { t.from = kafka.FromZero() } }

// FromLatest starts a new trigger behind the cells that are final when it
// first runs.
func FromLatest() Option { return func(t *trigger) { t.from = kafka.FromLatest() } }

// FromTime starts a new trigger at the first cell created at that time or
// later. Where a trigger starts counts only until its group has committed.
func FromTime(at time.Time) Option { return func(t *trigger) { t.from = kafka.FromTime(at) } }

// From starts a new trigger there.
func From(s Start) Option { return func(t *trigger) { t.from = s } }

// Start says where a consumer group starts that has committed nothing; the
// zero value is the first cell.
type Start = kafka.From

// ParseStart reads zero, latest, or a time such as 2026-03-01T12:00:00Z.
func ParseStart(s string) (Start, error) { return kafka.ParseFrom(s) }

// Parallel bounds the rows of a partition that are handled at the same time.
// The default is 16.
func Parallel(n int) Option { return func(t *trigger) { t.parallel = n } }

// Window bounds the cells of a partition from the first unfinished one on: how
// far other rows may go past a row that fails. The default is 4096.
func Window(cells int) Option { return func(t *trigger) { t.window = cells } }

// Backoff bounds the wait after a failure: the first one is min, each next
// twice as long up to max, less a random part of up to half. The defaults are
// 50 ms and 30 s.
func Backoff(min, max time.Duration) Option {
	return func(t *trigger) { t.backoffMin, t.backoffMax = min, max }
}

// trigger is a registered function.
type trigger struct {
	name, datastore, column string
	fn                      Func
	from                    Start
	parallel, window        int
	backoffMin, backoffMax  time.Duration
}

func (t *trigger) validate() error {
	switch {
	case !goodName(t.name):
		return fmt.Errorf("trigger %.80q: want a letter and up to 99 letters, digits, '-', '_' or '.'", t.name)
	case t.fn == nil:
		return fmt.Errorf("trigger %s: the function is nil", t.name)
	case t.parallel < 0 || t.window < 0:
		return fmt.Errorf("trigger %s: Parallel and Window must not be negative", t.name)
	case t.backoffMin < 0 || t.backoffMax < t.backoffMin:
		return fmt.Errorf("trigger %s: Backoff wants 0 <= min <= max", t.name)
	}
	if err := cellog.CheckDatastore(t.datastore); err != nil {
		return fmt.Errorf("trigger %s: %w", t.name, err)
	}
	if t.column != AllColumns {
		if err := cellog.CheckColumn(t.column); err != nil {
			return fmt.Errorf("trigger %s: %w", t.name, err)
		}
	}
	return nil
}

func (t *trigger) topic(prefix string) string {
	if t.column == AllColumns {
		return cellog.MergedTopicName(prefix, t.datastore)
	}
	return cellog.TopicName(prefix, t.datastore, t.column)
}

func goodName(s string) bool {
	if len(s) == 0 || len(s) > 100 {
		return false
	}
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		other := c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !letter && (i == 0 || !other) {
			return false
		}
	}
	return true
}
