package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cellog/cellog/schemas/record"
)

// A transaction that begins before the markers of the one before are written
// meets the broker's retry, which takes 20 ms (measured;
// add.partitions.to.txn.retry.backoff.ms). So the coordinator is asked first,
// unless the last commit is older than longGap. One that cannot tell is given
// commitGap.
const (
	longGap     = 10 * time.Millisecond
	commitGap   = 2 * time.Millisecond
	markerPause = 100 * time.Microsecond // between two questions
)

// ProducerConfig says how to produce.
type ProducerConfig struct {
	Config
	// TransactionalID fences older producers of the same id. Empty means that
	// records are written without transactions: idempotent, but not fenced.
	TransactionalID string
	// TransactionTimeout is how long a transaction of a frozen producer holds
	// readers back. Default and maximum: 10 s.
	TransactionTimeout time.Duration
	// MaxRecordBytes is the largest record, headers included. Default: 9 MiB.
	MaxRecordBytes int
	// MaxBufferedBytes bounds what Send holds; further Sends wait. Default: 64
	// MiB, and never less than two records.
	MaxBufferedBytes int
}

func (c ProducerConfig) withDefaults() (ProducerConfig, error) {
	if err := c.validate(); err != nil {
		return c, err
	}
	const most = 10 * time.Second
	if c.TransactionTimeout == 0 {
		c.TransactionTimeout = most
	}
	if c.TransactionTimeout < 0 || c.TransactionTimeout > most {
		return c, fmt.Errorf("kafka: transaction timeout %s: want at most %s, since a frozen producer holds back readers for as long", c.TransactionTimeout, most)
	}
	if c.MaxRecordBytes == 0 {
		c.MaxRecordBytes = 9 << 20
	}
	if c.MaxBufferedBytes == 0 {
		c.MaxBufferedBytes = 64 << 20
	}
	c.MaxBufferedBytes = max(c.MaxBufferedBytes, 2*c.MaxRecordBytes)
	return c, nil
}

// Message is a record on its way to a partition. After a Flush without error
// it knows its offset.
type Message struct {
	rec     kgo.Record
	headers [record.MaxHeaders]kgo.RecordHeader // of rec, if they are no more
}

// NewMessage returns a record bound for a topic's partition. It keeps r's key,
// value and the headers' values.
func NewMessage(topic string, partition int32, r record.Record) *Message {
	m := &Message{rec: kgo.Record{
		Topic: topic, Partition: partition,
		Key: r.Key, Value: r.Value, Timestamp: r.Time,
	}}
	if len(r.Headers) > 0 {
		m.rec.Headers = m.headers[:0]
		for _, h := range r.Headers {
			m.rec.Headers = append(m.rec.Headers, kgo.RecordHeader(h))
		}
	}
	return m
}

// Offset is the record's place in its partition, once a Flush returned nil.
func (m *Message) Offset() int64 { return m.rec.Offset }

// Topic and Partition say where the record goes.
func (m *Message) Topic() string { return m.rec.Topic }

// Partition says where the record goes.
func (m *Message) Partition() int32 { return m.rec.Partition }

// Size is the record's key, value and headers in bytes.
func (m *Message) Size() int {
	n := len(m.rec.Key) + len(m.rec.Value)
	for _, h := range m.rec.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// Producer writes records in transactions under one transactional id. One
// goroutine may use it at a time; only Close may come from another.
//
// Invariants:
//
//  1. Between Begin and Commit or Abort, every record that Send took is either
//     acknowledged or the first failure is kept, and Flush and Commit return it.
//  2. After a failure nothing but Abort and Close does anything.
type Producer struct {
	cl            *kgo.Client
	transactional bool
	id            string // the transactional one
	inTxn         bool
	lastCommit    time.Time

	known map[Partition]struct{} // partitions that the client's EndTransaction sees
	fresh []Partition            // sent to, and not in known

	sendErr atomic.Pointer[sendError] // written by promises
	broken  error                     // the first failure; owned by the using goroutine
}

type sendError struct {
	err error
	msg *kgo.Record
}

// OpenProducer connects and, with a transactional id, asks the broker for a
// new producer epoch: every older producer of that id is fenced from then on,
// and what it left open is aborted.
func OpenProducer(ctx context.Context, cfg ProducerConfig) (*Producer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	opts := append(cfg.options(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.WithCompressor(new(compressor)),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return batchBytes(topic, cfg.MaxRecordBytes) }),
		kgo.BrokerMaxWriteBytes(int32(max(100<<20, 2*cfg.MaxRecordBytes))),
		kgo.MaxBufferedRecords(200_000),
		kgo.MaxBufferedBytes(cfg.MaxBufferedBytes),
		kgo.StopProducerOnDataLossDetected(),
		kgo.UnknownTopicRetries(20),            // a topic just made is not known everywhere at once
		kgo.ProducerLinger(2*time.Millisecond), // a Flush cuts it short
	)
	if cfg.TransactionalID != "" {
		opts = append(opts,
			kgo.TransactionalID(cfg.TransactionalID),
			kgo.TransactionTimeout(cfg.TransactionTimeout),
			kgo.ConcurrentTransactionsBackoff(time.Millisecond),
		)
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, convert(err)
	}
	if _, _, err := cl.ProducerID(ctx); err != nil {
		cl.Close()
		return nil, fmt.Errorf("open producer %q: %w", cfg.TransactionalID, convert(err))
	}
	return &Producer{cl: cl, transactional: cfg.TransactionalID != "", id: cfg.TransactionalID, known: make(map[Partition]struct{})}, nil
}

// batchBytes bounds a batch: the internal topics have the broker's default
// limit of about 1 MiB, and a start of many shards writes more than that.
func batchBytes(topic string, most int) int32 {
	const internal = 900_000
	if strings.Contains(topic, "_cellog.") {
		most = min(most, internal)
	}
	return int32(most)
}

// Begin begins a transaction, unless one is open. It waits until the markers of
// the one before are written.
func (p *Producer) Begin(ctx context.Context) error {
	if p.broken != nil || p.inTxn {
		return p.broken
	}
	if p.transactional && time.Since(p.lastCommit) < longGap {
		if err := p.awaitMarkers(ctx); err != nil {
			return err
		}
	}
	if p.transactional {
		if err := p.cl.BeginTransaction(); err != nil {
			return p.fail(err)
		}
	}
	p.inTxn = true
	return nil
}

// awaitMarkers waits until the coordinator would take a new transaction, at most
// longGap after the last commit. Its error is ctx's.
func (p *Producer) awaitMarkers(ctx context.Context) error {
	pause := func(d time.Duration) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for time.Since(p.lastCommit) < longGap {
		written, err := p.markersWritten(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // not allowed, or an old broker
			return pause(commitGap - time.Since(p.lastCommit))
		case written:
			return nil
		}
		if err := pause(markerPause); err != nil {
			return err
		}
	}
	return nil
}

// markersWritten says whether no transaction of p's id is about to end.
func (p *Producer) markersWritten(ctx context.Context) (bool, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{p.id}
	resp, err := req.RequestWith(ctx, p.cl)
	if err != nil {
		return false, err
	}
	if len(resp.TransactionStates) != 1 {
		return false, fmt.Errorf("kafka: %d states of one transactional id", len(resp.TransactionStates))
	}
	s := &resp.TransactionStates[0]
	return !strings.HasPrefix(s.State, "Prepare"), kerr.ErrorForCode(s.ErrorCode)
}

// Send hands a record over; it waits while too many bytes are on their way. A
// returned error, or one of an earlier record, breaks the transaction.
func (p *Producer) Send(ctx context.Context, m *Message) error {
	if p.broken != nil {
		return p.broken
	}
	if !p.inTxn {
		return errors.New("kafka: Send outside a transaction")
	}
	if p.sendErr.Load() != nil {
		return p.failSent()
	}
	if at := (Partition{m.rec.Topic, m.rec.Partition}); !p.seen(at) {
		p.known[at] = struct{}{}
		p.fresh = append(p.fresh, at)
	}
	p.cl.Produce(ctx, &m.rec, p.promise)
	return nil
}

func (p *Producer) promise(r *kgo.Record, err error) {
	if err != nil {
		p.sendErr.CompareAndSwap(nil, &sendError{err, r})
	}
}

// Flush waits until every record that Send took is acknowledged, and returns
// the first failure.
func (p *Producer) Flush(ctx context.Context) error {
	if p.broken != nil {
		return p.broken
	}
	if err := p.cl.Flush(ctx); err != nil {
		return p.fail(err)
	}
	if p.sendErr.Load() != nil {
		return p.failSent()
	}
	return nil
}

// Commit flushes and commits. On an error it is unknown whether the
// transaction was committed.
func (p *Producer) Commit(ctx context.Context) error {
	if err := p.Flush(ctx); err != nil {
		return err
	}
	if !p.inTxn {
		return nil
	}
	if err := p.settle(ctx); err != nil {
		return p.fail(err)
	}
	if p.transactional {
		if err := p.cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
			return p.fail(err)
		}
	}
	p.inTxn = false
	p.lastCommit = time.Now()
	return nil
}

func (p *Producer) seen(at Partition) bool {
	_, ok := p.known[at]
	return ok
}

// settle waits until the client's own table holds every partition that was
// sent to. The client may send to a partition, and have the answer, before the
// metadata update that found it has stored the table; EndTransaction then sees
// no partition in the transaction, aborts it and returns nil (franz-go 1.22.3;
// seen in one of a hundred first transactions on a busy machine). An error of
// the table says nothing: it may be that of an older load, and a stored
// partition keeps its leader.
func (p *Producer) settle(ctx context.Context) error {
	for len(p.fresh) > 0 {
		at := p.fresh[len(p.fresh)-1]
		if leader, _, _ := p.cl.PartitionLeader(at.Topic, at.Partition); leader >= 0 {
			p.fresh = p.fresh[:len(p.fresh)-1]
			continue
		}
		t := time.NewTimer(100 * time.Microsecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// Abort gives the open transaction up, as well as it can: when the broker does
// not answer before ctx ends, the transaction's timeout does it, or the next
// OpenProducer.
func (p *Producer) Abort(ctx context.Context) error {
	if !p.inTxn || !p.transactional {
		return nil
	}
	p.inTxn = false
	p.broken = errors.Join(p.broken, errors.New("kafka: transaction aborted"))
	if err := p.cl.AbortBufferedRecords(ctx); err != nil {
		return convert(err)
	}
	return convert(p.cl.EndTransaction(ctx, kgo.TryAbort))
}

// Close lets the connections go; records not yet sent are dropped, and an open
// transaction is left to its timeout or to the next OpenProducer.
func (p *Producer) Close() { p.cl.Close() }

// Refused is what a failed Flush or Send knows about the record that failed
// first; others of its batch may have failed with it.
type Refused struct {
	Topic     string
	Partition int32
	Err       error
}

// Error names the partition and the reason, never the record's content.
func (r *Refused) Error() string {
	return fmt.Sprintf("record for %s, partition %d: %v", r.Topic, r.Partition, r.Err)
}

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.Err }

func (p *Producer) fail(err error) error {
	if p.broken == nil {
		p.broken = convert(err)
	}
	return p.broken
}

func (p *Producer) failSent() error {
	if p.broken == nil {
		s := p.sendErr.Load()
		p.broken = &Refused{Topic: s.msg.Topic, Partition: s.msg.Partition, Err: convert(s.err)}
	}
	return p.broken
}
