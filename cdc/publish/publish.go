package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// Config says where a cluster's cells are published.
type Config struct {
	// Kafka says how to reach the brokers. Required.
	Kafka kafka.Config
	// Cluster is the storage cluster's name. Required.
	Cluster string
	// Prefix starts the name of every topic and of the transactional id.
	// Default: empty.
	Prefix string
	// TransactionTimeout is for how long a frozen tailer holds readers back.
	// Default and maximum: 10 s.
	TransactionTimeout time.Duration
	// Remember lets a read of the positions go on where the last one ended: for
	// one that reads them again and again, and lives as long as a move. Default:
	// false, each read is of the whole topic.
	Remember bool
	// Logger is for what an operator should know. Default: none.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Cluster == "" {
		return c, errors.New("publish: Cluster is empty: want the storage cluster's name")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// TransactionalID is the id under which a cluster's tailer and its promoters
// write.
func TransactionalID(prefix, cluster string) string { return prefix + "cellog.tailer." + cluster }

// Publisher opens sessions. Its methods may be called at the same time.
type Publisher struct {
	cfg Config
	adm *kafka.Admin

	mu     sync.Mutex // guards what follows
	read   reading    // with Remember
	others map[string]*Publisher
}

// reading is what was read of the positions topic: the newest value of each key
// below the offset next.
type reading struct {
	next   int64
	newest map[string][]byte
}

// New returns a Publisher; it connects when it is used. Close it.
func New(cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	adm, err := kafka.NewAdmin(cfg.Kafka)
	if err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, adm: adm}, nil
}

// Close lets the connections go. Sessions are closed by themselves.
func (p *Publisher) Close() { p.adm.Close() }

func (p *Publisher) positionsTopic() string {
	return cellog.PositionsTopicName(p.cfg.Prefix, p.cfg.Cluster)
}

func (p *Publisher) heartbeatsTopic() string { return cellog.HeartbeatsTopicName(p.cfg.Prefix) }

// Positions reads what is committed up to the first open transaction. It does
// not wait for that one to end: it would take up to the transaction's timeout,
// and whoever acts on the positions opens first, which ends it.
func (p *Publisher) Positions(ctx context.Context) (cdc.Positions, error) {
	offsets, err := p.adm.CommittedOffsets(ctx, p.positionsTopic())
	if errors.Is(err, kafka.ErrUnknownTopic) {
		return cdc.Positions{}, nil
	}
	if err != nil {
		return cdc.Positions{}, convert(err)
	}
	return p.readTo(ctx, offsets[0])
}

// Standing reads what is committed, to the end, open transactions included: it
// waits for those, at most their timeout of 10 s, and so never misses what was
// committed before the call. Who decides by the positions, and has not opened,
// needs these.
func (p *Publisher) Standing(ctx context.Context) (cdc.Positions, error) {
	offsets, err := p.adm.Offsets(ctx, p.positionsTopic())
	if errors.Is(err, kafka.ErrUnknownTopic) {
		return cdc.Positions{}, nil
	}
	if err != nil {
		return cdc.Positions{}, convert(err)
	}
	return p.readTo(ctx, offsets[0])
}

// settled waits until readers of what is committed see all that is in the
// positions topic now.
func (p *Publisher) settled(ctx context.Context) error {
	offsets, err := p.adm.Offsets(ctx, p.positionsTopic())
	if err != nil {
		return convert(err)
	}
	end := offsets[0].End
	return convert(kafka.ReadRange(ctx, p.cfg.Kafka, p.positionsTopic(), 0, end-1, end, func(kafka.Fetched) error { return nil }))
}

// readTo reads the positions up to the end of what o says is there.
func (p *Publisher) readTo(ctx context.Context, o kafka.Offsets) (cdc.Positions, error) {
	pos := cdc.Positions{Shards: make(map[cdc.ShardKey]position.Shard)}
	// Only the newest value of a key counts, so decode those only.
	var r reading
	if p.cfg.Remember {
		p.mu.Lock()
		defer p.mu.Unlock()
		r = p.read
	}
	if r.newest == nil || r.next > o.End {
		r = reading{next: o.Start, newest: make(map[string][]byte)}
	}
	err := kafka.ReadRange(ctx, p.cfg.Kafka, p.positionsTopic(), 0, max(r.next, o.Start), o.End, func(f kafka.Fetched) error {
		r.newest[string(f.Key)] = f.Value
		return nil
	})
	if err != nil {
		return pos, convert(err) // what came may be read again: the newest stays the newest
	}
	if r.next = o.End; p.cfg.Remember {
		p.read = r
	}
	for key, value := range r.newest {
		if value == nil {
			continue
		}
		if key == position.ClusterKey {
			c, err := position.Unmarshal[position.Cluster](value)
			if err != nil {
				return pos, fmt.Errorf("%s: key %s: %w", p.positionsTopic(), key, err)
			}
			pos.Cluster = &c
			continue
		}
		ds, shard, ok := position.ParseShardKey(key)
		if !ok {
			return pos, fmt.Errorf("%s: unknown key %.80q", p.positionsTopic(), key)
		}
		s, err := position.Unmarshal[position.Shard](value)
		if err != nil {
			return pos, fmt.Errorf("%s: key %s: %w", p.positionsTopic(), key, err)
		}
		pos.Shards[cdc.ShardKey{Datastore: ds, Shard: shard}] = s
	}
	return pos, nil
}

// ensure makes the internal topics.
func (p *Publisher) ensure(ctx context.Context) error {
	if _, err := p.adm.EnsureTopic(ctx, kafka.PositionsTopic(p.positionsTopic())); err != nil {
		return convert(err)
	}
	_, err := p.adm.EnsureTopic(ctx, kafka.HeartbeatsTopic(p.heartbeatsTopic()))
	return convert(err)
}

// producer opens the cluster's producer, which fences all older ones, and ends
// what they left open.
func (p *Publisher) producer(ctx context.Context) (*kafka.Producer, error) {
	id := TransactionalID(p.cfg.Prefix, p.cfg.Cluster)
	if failpoint.Hit("publish/idempotent-only") {
		id = "" // a test shows what fencing is for
	}
	if failpoint.Hit("publish/unfenced") {
		id += "-unfenced" // likewise, for a promotion
	}
	prod, err := kafka.OpenProducer(ctx, kafka.ProducerConfig{
		Config: p.cfg.Kafka, TransactionalID: id,
		TransactionTimeout: p.cfg.TransactionTimeout,
		MaxRecordBytes:     body.MaxBytes + 1<<20,
	})
	if err != nil {
		return nil, convert(err)
	}
	left, err := p.adm.EndLeft(ctx, prod, p.cfg.Prefix, kafka.Partition{Topic: p.positionsTopic()})
	if err != nil {
		prod.Close()
		return nil, convert(err)
	}
	for _, l := range left {
		p.cfg.Logger.Warn("the broker had left a transaction open that was over; it is ended now",
			"cluster", p.cfg.Cluster, "topic", l.At.Topic, "partition", l.At.Partition, "offset", l.Start, "epoch", l.Epoch, "committed", l.Committed)
	}
	return prod, nil
}

// Open fences every older session and returns a new one, with the positions
// as they now stand.
func (p *Publisher) Open(ctx context.Context) (cdc.Session, cdc.Positions, error) {
	if err := p.ensure(ctx); err != nil {
		return nil, cdc.Positions{}, err
	}
	prod, err := p.producer(ctx)
	if err != nil {
		return nil, cdc.Positions{}, err
	}
	pos, err := p.Standing(ctx)
	if err != nil {
		prod.Close()
		return nil, cdc.Positions{}, err
	}
	return &session{p: p, prod: prod, beforeEnd: "publish/before-end", stands: pos.Cluster, encoders: make(map[string]*record.Encoder)}, pos, nil
}

// Watch returns nil when a heartbeat with the given mark arrives.
func (p *Publisher) Watch(ctx context.Context, mark string) error {
	offsets, err := p.adm.Offsets(ctx, p.heartbeatsTopic())
	if errors.Is(err, kafka.ErrUnknownTopic) {
		<-ctx.Done()
		return ctx.Err()
	}
	if err != nil {
		return convert(err)
	}
	seen := errors.New("seen")
	err = kafka.Follow(ctx, p.cfg.Kafka, p.heartbeatsTopic(), 0, offsets[0].End, func(f kafka.Fetched) error {
		if b, err := heartbeat.Unmarshal(f.Value); err == nil && b.Cluster == p.cfg.Cluster && b.Mark == mark {
			return seen
		}
		return nil
	})
	if errors.Is(err, seen) {
		return nil
	}
	return convert(err)
}

// WriteFirstOpen writes the first {open, term 1, node} of a cluster, and makes
// its internal topics. A cluster that has an open or a claim already is left
// alone, so it may be called at every start; written says which it was.
// serverUUID is the node's @@server_uuid, or on MariaDB, which has none,
// whatever names the server for good.
func (p *Publisher) WriteFirstOpen(ctx context.Context, node, serverUUID string) (written bool, err error) {
	if err := p.ensure(ctx); err != nil {
		return false, err
	}
	if pos, err := p.Positions(ctx); err != nil || pos.Cluster != nil {
		return false, err
	}
	prod, err := p.producer(ctx)
	if err != nil {
		return false, err
	}
	defer prod.Close()
	// Now that nobody else writes: is there really none?
	pos, err := p.Standing(ctx)
	if err != nil || pos.Cluster != nil {
		return false, err
	}
	s := &session{p: p, prod: prod, beforeEnd: "publish/first-open-before-end"}
	err = s.Commit(ctx, cdc.Commit{Cluster: position.Cluster{
		Term: cellog.FirstTerm, State: position.Open, Node: node, ServerUUID: serverUUID, UpdatedAt: time.Now().UTC(),
	}})
	if err == nil {
		err = p.settled(ctx)
	}
	return err == nil, err
}

// convert gives the marks of internal/kafka their names in cdc.
func convert(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kafka.ErrFenced):
		return fmt.Errorf("%w: %w", cdc.ErrFenced, err)
	case errors.Is(err, kafka.ErrRecordRefused):
		return fmt.Errorf("%w: %w", cdc.ErrRefused, err)
	}
	return err
}
