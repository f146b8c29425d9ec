package publish

import (
	"context"
	"errors"
	"fmt"
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

// session is one producer epoch. prod belongs to the committing goroutine;
// the encoders are shared.
type session struct {
	p         *Publisher
	prod      *kafka.Producer
	beforeEnd string // the failpoint between a transaction's records and its end

	stands *position.Cluster // what the positions say now; nil: unknown
	joined bool              // the transaction holds a record of the positions' topic

	mu       sync.RWMutex
	encoders map[string]*record.Encoder
}

// Topic makes sure that the column's topic, and the merged topic if the
// datastore has one, are there and fit.
func (s *session) Topic(ctx context.Context, ds *cdc.Datastore, column string) error {
	names := []string{cellog.TopicName(s.p.cfg.Prefix, ds.Name, column)}
	if ds.Merged {
		names = append(names, cellog.MergedTopicName(s.p.cfg.Prefix, ds.Name))
	}
	for _, name := range names {
		made, err := s.p.adm.EnsureTopic(ctx, kafka.ColumnTopic(name, ds.Partitions, body.MaxBytes))
		if errors.Is(err, kafka.ErrTopicMismatch) {
			return fmt.Errorf("%w: %w", cdc.ErrShard, err)
		}
		if err != nil {
			return convert(err)
		}
		if made {
			s.p.cfg.Logger.Info("topic made", "topic", name, "partitions", ds.Partitions)
		}
	}
	return nil
}

func (s *session) encoder(datastore string) *record.Encoder {
	s.mu.RLock()
	e := s.encoders[datastore]
	s.mu.RUnlock()
	if e == nil {
		e = record.NewEncoder(datastore)
		s.mu.Lock()
		s.encoders[datastore] = e
		s.mu.Unlock()
	}
	return e
}

// headers are for those of one record, until the messages have theirs.
var headers = sync.Pool{New: func() any { return new([]record.Header) }}

// Encode turns a cell, whose body is a value of a form, into its messages.
func (s *session) Encode(ds *cdc.Datastore, c *cellog.Cell, form record.Form) (column, merged cdc.Message) {
	scratch := headers.Get().(*[]record.Header)
	defer headers.Put(scratch)
	rec := s.encoder(ds.Name).Encode(c, form, (*scratch)[:0])
	*scratch = rec.Headers
	partition := cellog.PartitionOf(c.Shard, ds.Partitions)
	column = kafka.NewMessage(cellog.TopicName(s.p.cfg.Prefix, ds.Name, c.Column), partition, rec)
	if ds.Merged {
		merged = kafka.NewMessage(cellog.MergedTopicName(s.p.cfg.Prefix, ds.Name), partition, rec)
	}
	return column, merged
}

// Send hands a message over. The first of a transaction is sent with the
// cluster's position as it stands: so the partition of the positions joins the
// transaction with those of the cells, and Commit, which knows the positions only
// when the cells are in Kafka, need not wait for that again.
func (s *session) Send(ctx context.Context, m cdc.Message) error {
	if err := s.prod.Begin(ctx); err != nil {
		return convert(err)
	}
	if !s.joined && s.stands != nil {
		if err := s.prod.Send(ctx, s.position(position.ClusterKey, position.Marshal(*s.stands))); err != nil {
			return convert(err)
		}
		s.joined = true
	}
	return convert(s.prod.Send(ctx, m.(*kafka.Message)))
}

func (s *session) position(key string, value []byte) *kafka.Message {
	return kafka.NewMessage(s.p.positionsTopic(), 0, record.Record{Key: []byte(key), Value: value, Time: time.Now()})
}

// Flush waits until all messages are in Kafka.
func (s *session) Flush(ctx context.Context) error { return convert(s.prod.Flush(ctx)) }

// Commit writes positions and heartbeats and commits. A record of these that
// is refused is nobody's cell, so the mark is taken off.
func (s *session) Commit(ctx context.Context, c cdc.Commit) error {
	if err := s.commit(ctx, c); err != nil {
		if err = convert(err); errors.Is(err, cdc.ErrRefused) {
			return fmt.Errorf("write positions: %v", err)
		}
		return err
	}
	return nil
}

func (s *session) commit(ctx context.Context, c cdc.Commit) error {
	if err := s.prod.Begin(ctx); err != nil {
		return err
	}
	for k, v := range c.Shards {
		if err := s.prod.Send(ctx, s.position(position.ShardKey(k.Datastore, k.Shard), position.Marshal(v))); err != nil {
			return err
		}
	}
	if err := s.prod.Send(ctx, s.position(position.ClusterKey, position.Marshal(c.Cluster))); err != nil {
		return err
	}
	for _, b := range c.Beats {
		v := heartbeat.Marshal(heartbeat.Beat{Cluster: s.p.cfg.Cluster, Mark: c.Cluster.TailerMark, Beat: b.Beat, WrittenAt: b.WrittenAt, Tailer: &c.Tailer})
		m := kafka.NewMessage(s.p.heartbeatsTopic(), 0, record.Record{Key: []byte(s.p.cfg.Cluster), Value: v, Time: time.Now()})
		if err := s.prod.Send(ctx, m); err != nil {
			return err
		}
	}
	if err := s.prod.Flush(ctx); err != nil {
		return err
	}
	failpoint.Hit(s.beforeEnd)
	if err := s.prod.Commit(ctx); err != nil {
		return err
	}
	s.stands, s.joined = &c.Cluster, false
	return nil
}

// Close aborts what is open, if the broker answers in time.
func (s *session) Close(ctx context.Context) {
	if err := s.prod.Abort(ctx); err != nil && ctx.Err() == nil {
		s.p.cfg.Logger.Info("transaction not aborted; the broker will", "cluster", s.p.cfg.Cluster, "error", err)
	}
	s.prod.Close()
}
