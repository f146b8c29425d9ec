package triggers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cellog/cellog/internal/feed"
	"github.com/cellog/cellog/internal/kafka"
)

// SubscriberConfig says how a Subscriber reads topics.
type SubscriberConfig struct {
	// Brokers are host:port addresses of brokers to ask first. Required.
	Brokers []string
	// ClientID names this process in the brokers' logs. Default "cellog".
	ClientID string
	// Group is the consumer group. Required. Subscriptions of one group to
	// different topics share rebalances: give each topic its own.
	Group string
	// From is where a partition starts of which the group committed nothing.
	From Start
	// Parallel, Window, Drain, BackoffMin, BackoffMax and SessionTimeout are
	// feed.Config's; zero means its default.
	Parallel, Window       int
	Drain                  time.Duration
	BackoffMin, BackoffMax time.Duration
	SessionTimeout         time.Duration
	// Message makes a message of a cell; nil means CellMessage.
	Message func(Delivery) (*message.Message, error)
	// Logger; nil discards.
	Logger *slog.Logger
	// Registerer gets the metrics; nil for none.
	Registerer Registerer
}

// Delivery is a cell with its place and its fencing token.
type Delivery = feed.Delivery

// Subscriber is a watermill subscriber to column topics. A row's next message
// comes after the Ack of the one before; rows come in parallel. A Nack makes
// the same message come again after a while, without holding up other rows.
// Offsets are committed for acknowledged messages only.
type Subscriber struct {
	cfg SubscriberConfig

	mu     sync.Mutex
	closed bool
	subs   map[*subscription]struct{}
}

type subscription struct {
	topic  string
	cancel context.CancelFunc
	done   chan struct{}
	out    chan *message.Message

	mu   sync.Mutex
	feed *feed.Feed
}

// ErrSubscriberClosed is returned by Subscribe after Close.
var ErrSubscriberClosed = errors.New("subscriber is closed")

// errNacked is a Nack of which no error is known.
var errNacked = errors.New("the message was not acknowledged")

// NewSubscriber returns a Subscriber; each Subscribe joins the group.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Message == nil {
		cfg.Message = CellMessage
	}
	if len(cfg.Brokers) == 0 {
		return nil, errors.New("subscriber: Brokers is empty: want at least one host:port")
	}
	s := &Subscriber{cfg: cfg, subs: make(map[*subscription]struct{})}
	_, err := feed.New(s.feedConfig(&subscription{topic: "checked"}, context.Background()))
	return s, err
}

// CellMessage makes a message of a cell: its UUID is the cell's id
// (<datastore>/<shard>/<added_id>), its payload the JSON body, its metadata
// the cell's place.
func CellMessage(d Delivery) (*message.Message, error) {
	m := message.NewMessage(d.ID(), d.Body)
	m.Metadata = message.Metadata{
		"row_key": d.Row.String(), "column": d.Column, "ref_key": strconv.FormatInt(int64(d.Ref), 10),
		"datastore": d.Datastore, "shard": strconv.Itoa(int(d.Shard)), "added_id": strconv.FormatInt(int64(d.AddedID), 10),
		"created_at": d.CreatedAt.UTC().Format(time.RFC3339Nano),
	}
	return m, nil
}

func (s *Subscriber) feedConfig(sub *subscription, ending context.Context) feed.Config {
	return feed.Config{
		Kafka: kafka.Config{Addrs: s.cfg.Brokers, ClientID: s.cfg.ClientID, Logger: s.cfg.Logger}, Group: s.cfg.Group, Topics: []string{sub.topic}, From: s.cfg.From,
		Parallel: s.cfg.Parallel, MaxCells: s.cfg.Window, Drain: s.cfg.Drain,
		BackoffMin: s.cfg.BackoffMin, BackoffMax: cmp.Or(s.cfg.BackoffMax, max(s.cfg.BackoffMin, 30*time.Second)),
		SessionTimeout: s.cfg.SessionTimeout,
		Logger:         s.cfg.Logger, Registerer: s.cfg.Registerer,
		Handle: func(ctx context.Context, d feed.Delivery) error { return s.deliver(ctx, ending, sub, d) },
	}
}

// Subscribe joins the group for a topic, which need not exist yet. The channel
// is closed when ctx ends or the Subscriber is closed, after the messages
// that are out were acknowledged or Drain is over.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	sub := &subscription{topic: topic, cancel: cancel, done: make(chan struct{}), out: make(chan *message.Message)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		return nil, ErrSubscriberClosed
	}
	s.subs[sub] = struct{}{}
	go s.run(ctx, sub)
	return sub.out, nil
}

// run feeds until ctx ends. A Feed fails to begin when the brokers are away
// for long; then a new one tries.
func (s *Subscriber) run(ctx context.Context, sub *subscription) {
	defer close(sub.done)
	defer close(sub.out)
	defer func() {
		s.mu.Lock()
		delete(s.subs, sub)
		s.mu.Unlock()
	}()
	defer sub.cancel()
	for ctx.Err() == nil {
		f, err := feed.New(s.feedConfig(sub, ctx))
		if err == nil {
			sub.mu.Lock()
			sub.feed = f
			sub.mu.Unlock()
			err = f.Run(ctx)
		}
		if err != nil {
			s.cfg.Logger.Error("subscription cannot begin; trying again", "group", s.cfg.Group, "topic", sub.topic, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// deliver sends a message and waits for its Ack. ending ends when no new
// message may go out.
func (s *Subscriber) deliver(ctx, ending context.Context, sub *subscription, d feed.Delivery) error {
	m, err := s.cfg.Message(d)
	if err != nil {
		return err
	}
	out := &delivered{Delivery: d}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, deliveredKey{}, out))
	defer cancel() // watermill: a message's context ends with its Ack
	m.SetContext(ctx)
	select {
	case sub.out <- m:
	case <-ending.Done():
		return feed.ErrTaken
	case <-ctx.Done():
		return feed.ErrTaken
	}
	select {
	case <-m.Acked():
		return nil
	case <-m.Nacked():
		return cmp.Or(out.failure(), errNacked)
	case <-ctx.Done():
		return feed.ErrTaken
	}
}

// Close ends all subscriptions and waits for them.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	var subs []*subscription
	for sub := range s.subs {
		subs = append(subs, sub)
	}
	s.mu.Unlock()
	for _, sub := range subs {
		sub.cancel()
	}
	for _, sub := range subs {
		<-sub.done
	}
	return nil
}

// feeds returns the members that run now.
func (s *Subscriber) feeds() []*feed.Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fs []*feed.Feed
	for sub := range s.subs {
		sub.mu.Lock()
		if sub.feed != nil {
			fs = append(fs, sub.feed)
		}
		sub.mu.Unlock()
	}
	return fs
}

// delivered travels in a message's context: the cell, and on the way back what
// the function said.
type delivered struct {
	feed.Delivery
	mu  sync.Mutex
	err error
}

type deliveredKey struct{}

func (d *delivered) fail(err error) {
	d.mu.Lock()
	d.err = err
	d.mu.Unlock()
}

func (d *delivered) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Generation returns the fencing token of the cell that ctx belongs to: a
// later holder of the cell's partition has a higher one. Hand it to whatever
// the function changes, and let that refuse a lower one than it has seen: a
// process that was frozen may wake up after its partition went on. It is 0 for
// any other context.
func Generation(ctx context.Context) int64 {
	if d, ok := ctx.Value(deliveredKey{}).(*delivered); ok {
		return d.Delivery.Generation
	}
	return 0
}

// Attempt returns how often this process has begun the cell that ctx belongs
// to, 1 at first. It is 0 for any other context.
func Attempt(ctx context.Context) int {
	if d, ok := ctx.Value(deliveredKey{}).(*delivered); ok {
		return d.Delivery.Attempt
	}
	return 0
}
