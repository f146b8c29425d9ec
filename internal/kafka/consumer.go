package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog/schemas/record"
)

// Partition names one partition of a topic.
type Partition struct {
	Topic     string
	Partition int32
}

// String returns topic/partition.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

// Delivery is one committed record and its place.
type Delivery struct {
	record.Record
	Partition   Partition
	Offset      int64
	LeaderEpoch int32
}

// From says where to start a partition that has no committed offset yet. The
// zero value is FromZero.
type From struct {
	latest bool
	time   time.Time
}

// FromZero starts with the first record there is.
func FromZero() From { return From{} }

// FromLatest starts behind the records that are final when the reader starts.
// A partition that is made later is read from its first record: whoever waits
// for a column's first cell gets it.
func FromLatest() From { return From{latest: true} }

// FromTime starts with the first record whose time is t or later, as the
// broker finds it: the embedded one knows only where a batch begins, a time to
// come is like latest, and shards that share a partition mix their times. Who
// wants no older record asks Before. Record times have milliseconds: t is
// rounded down to one. No record is older than 1970, and below it the protocol
// has other meanings.
func FromTime(t time.Time) From {
	if t.UnixMilli() < 0 {
		return FromZero()
	}
	return From{time: t}
}

// Before says whether t is before the time to start at, if there is one.
func (f From) Before(t time.Time) bool { return t.UnixMilli() < f.time.UnixMilli() && !f.time.IsZero() }

// Zero says whether the start is the first record there is.
func (f From) Zero() bool { return !f.latest && f.time.IsZero() }

// String returns zero, latest or the time in RFC 3339.
func (f From) String() string {
	switch {
	case f.latest:
		return "latest"
	case !f.time.IsZero():
		return f.time.UTC().Format(time.RFC3339Nano)
	}
	return "zero"
}

// ParseFrom reads zero, latest or an RFC 3339 time.
func ParseFrom(s string) (From, error) {
	switch s {
	case "zero":
		return FromZero(), nil
	case "latest":
		return FromLatest(), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return From{}, fmt.Errorf("from %.60q: want zero, latest or a time such as 2026-03-01T12:00:00Z", s)
	}
	return FromTime(t), nil
}

// Span is a part of a partition: the offsets From … To-1.
type Span struct {
	Partition
	From, To int64
}

// ConsumerConfig says how a Consumer reads.
type ConsumerConfig struct {
	Config
	// FetchMaxBytes bounds one answer of one broker. Default 16 MiB; a record
	// that is larger still comes, alone.
	FetchMaxBytes int32
	// MetadataMaxAge is how soon new topics and leaders are seen. Default 500 ms.
	MetadataMaxAge time.Duration
}

// options are what every consumer of ours has in common.
func (c ConsumerConfig) options() []kgo.Opt {
	return append(c.Config.options(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Never jump: an offset that is gone is an error to be judged.
		kgo.ConsumeResetOffset(kgo.NoResetOffset().AtStart()),
		kgo.ConsumeStartOffset(kgo.NoResetOffset().AtStart()),
		kgo.FetchMaxBytes(cmp.Or(c.FetchMaxBytes, 16<<20)),
		// A resumed partition waits for the fetch that is in flight.
		kgo.FetchMaxWait(500*time.Millisecond),
		kgo.MetadataMaxAge(cmp.Or(c.MetadataMaxAge, 500*time.Millisecond)),
	)
}

// Consumer reads partitions without a group: for tools that compare, print or
// follow topics. Its methods may be called at the same time.
type Consumer struct {
	cfg ConsumerConfig
	adm *kadm.Client
	cl  *kgo.Client
}

// NewConsumer returns a Consumer. It does not contact the brokers yet.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(cfg.options()...)
	if err != nil {
		return nil, fmt.Errorf("kafka consumer: %w", err)
	}
	return &Consumer{cfg: cfg, cl: cl, adm: kadm.NewClient(cl)}, nil
}

// Close ends the Consumer and any call in progress, with ErrClosed.
func (c *Consumer) Close() { c.cl.Close() }

// Spans returns, for every partition of the topics that exist, what is there
// now for a reader of committed records that starts at from: To is the end of
// the last finished transaction. Topics that do not exist are left out.
func (c *Consumer) Spans(ctx context.Context, from From, topics ...string) ([]Span, error) {
	ends, err := listOffsets(ctx, c.adm.ListCommittedOffsets, topics)
	if err != nil {
		return nil, err
	}
	starts, err := startOffsets(ctx, c.adm, from, ends, topics)
	if err != nil {
		return nil, err
	}
	var spans []Span
	for p, end := range ends {
		if start, ok := starts[p]; ok {
			spans = append(spans, Span{Partition: p, From: min(start.Offset, end.Offset), To: end.Offset})
		}
	}
	return spans, nil
}

// Read calls fn for every committed record of the spans, in offset order
// within each partition, and returns when all spans are read. An offset that
// is not there any more ends it with an *OutOfRangeError, an error of fn with
// that error. The ends must lie within what Spans returned, and the topics
// must not be compacted: then the record or the transaction's mark before each
// end is there to be seen.
func (c *Consumer) Read(ctx context.Context, spans []Span, fn func(Delivery) error) error {
	left := make(map[Partition]int64, len(spans))
	assign := make(map[string]map[int32]kgo.Offset)
	for _, s := range spans {
		if s.From >= s.To {
			continue
		}
		if _, twice := left[s.Partition]; twice {
			return fmt.Errorf("kafka consumer: partition %s given twice", s.Partition)
		}
		left[s.Partition] = s.To
		if assign[s.Topic] == nil {
			assign[s.Topic] = make(map[int32]kgo.Offset)
		}
		assign[s.Topic][s.Partition.Partition] = kgo.NoResetOffset().At(s.From)
	}
	if len(left) == 0 {
		return nil
	}
	opts := append(c.cfg.options(), kgo.ConsumePartitions(assign), kgo.KeepControlRecords())
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("kafka consumer: %w", err)
	}
	defer cl.Close()
	stop := context.AfterFunc(c.cl.Context(), cl.Close)
	defer stop()
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			failed = errors.Join(failed, fetchError(ctx, c.adm, Partition{topic, partition}, -1, err))
		})
		if failed != nil {
			return failed
		}
		for it := fetches.RecordIter(); !it.Done(); {
			rec := it.Next()
			p := Partition{rec.Topic, rec.Partition}
			end, reading := left[p]
			if !reading {
				continue
			}
			if rec.Offset < end && !rec.Attrs.IsControl() {
				if err := fn(delivery(rec)); err != nil {
					return err
				}
			}
			if rec.Offset+1 >= end {
				delete(left, p)
				cl.PauseFetchPartitions(map[string][]int32{p.Topic: {p.Partition}})
			}
		}
	}
	return nil
}

// Follow calls fn for every committed record of the topics, topics that are
// made later too, starting each partition at from, until ctx ends (it then
// returns nil) or fn or a partition fails.
func (c *Consumer) Follow(ctx context.Context, from From, topics []string, fn func(Delivery) error) error {
	assign := make(map[string]map[int32]kgo.Offset)
	if !from.Zero() {
		spans, err := c.Spans(ctx, from, topics...)
		if err != nil {
			return err
		}
		for _, s := range spans {
			if assign[s.Topic] == nil {
				assign[s.Topic] = make(map[int32]kgo.Offset)
			}
			assign[s.Topic][s.Partition.Partition] = kgo.NoResetOffset().At(s.From)
		}
		topics = slices.DeleteFunc(slices.Clone(topics), func(t string) bool { return assign[t] != nil })
	}
	cl, err := kgo.NewClient(append(c.cfg.options(), kgo.ConsumeTopics(topics...), kgo.ConsumePartitions(assign))...)
	if err != nil {
		return fmt.Errorf("kafka consumer: %w", err)
	}
	defer cl.Close()
	stop := context.AfterFunc(c.cl.Context(), cl.Close)
	defer stop()
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			failed = errors.Join(failed, fetchError(ctx, c.adm, Partition{topic, partition}, -1, err))
		})
		if failed != nil {
			return failed
		}
		for it := fetches.RecordIter(); !it.Done(); {
			if err := fn(delivery(it.Next())); err != nil {
				return err
			}
		}
	}
}

// delivery copies a client record's fields; the bytes stay shared.
func delivery(r *kgo.Record) Delivery {
	m := Delivery{
		Record:      record.Record{Key: r.Key, Value: r.Value, Time: r.Timestamp},
		Partition:   Partition{r.Topic, r.Partition},
		Offset:      r.Offset,
		LeaderEpoch: r.LeaderEpoch,
	}
	if len(r.Headers) > 0 {
		m.Headers = make([]record.Header, len(r.Headers))
		for i, h := range r.Headers {
			m.Headers[i] = record.Header{Key: h.Key, Value: h.Value}
		}
	}
	return m
}

// place is an offset and the leader epoch to go with it.
type place struct {
	Offset int64
	Epoch  int32
}

// listOffsets asks for offsets of the topics and leaves out topics that do not
// exist.
func listOffsets(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), topics []string) (map[Partition]place, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	listed, err := list(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", convert(err))
	}
	out := make(map[Partition]place)
	var failed error
	listed.Each(func(o kadm.ListedOffset) {
		switch {
		case errors.Is(o.Err, kerr.UnknownTopicOrPartition):
		case o.Err != nil:
			failed = fmt.Errorf("list offsets of %s/%d: %w", o.Topic, o.Partition, convert(o.Err))
		default:
			out[Partition{o.Topic, o.Partition}] = place{o.Offset, o.LeaderEpoch}
		}
	})
	return out, failed
}

// startOffsets returns where to start the topics' partitions; latest is what
// FromLatest means.
func startOffsets(ctx context.Context, adm *kadm.Client, from From, latest map[Partition]place, topics []string) (map[Partition]place, error) {
	switch {
	case from.latest:
		return latest, nil
	case !from.time.IsZero():
		return listOffsets(ctx, func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
			return adm.ListOffsetsAfterMilli(ctx, from.time.UnixMilli(), topics...)
		}, topics)
	}
	return listOffsets(ctx, adm.ListStartOffsets, topics)
}

// fetchError turns what the client says of a partition into our errors; want
// is the offset that was asked for, or negative.
func fetchError(ctx context.Context, adm *kadm.Client, p Partition, want int64, err error) error {
	if errors.Is(err, kerr.OffsetOutOfRange) {
		out := &OutOfRangeError{Partition: p, Offset: want, Start: -1, End: -1}
		if starts, err := listOffsets(ctx, adm.ListStartOffsets, []string{p.Topic}); err == nil {
			out.Start = starts[p].Offset
		}
		if ends, err := listOffsets(ctx, adm.ListEndOffsets, []string{p.Topic}); err == nil {
			out.End = ends[p].Offset
		}
		return out
	}
	var lost *kgo.ErrDataLoss
	if errors.As(err, &lost) {
		return &OutOfRangeError{Partition: p, Offset: lost.ConsumedTo, Start: -1, End: lost.ResetTo}
	}
	return fmt.Errorf("read %s: %w", p, convert(err))
}

// OutOfRangeError is returned when the offset that a consumer needs is not in
// the partition any more, or not yet: records expired, or the broker lost its
// tail. Nothing was skipped; the caller decides.
type OutOfRangeError struct {
	Partition Partition
	// Offset is the one that was needed, negative if not known.
	Offset int64
	// Start and End are what the partition holds, Start … End-1; negative if
	// not known.
	Start, End int64
}

// Is makes it an ErrOffsetGone.
func (e *OutOfRangeError) Is(target error) bool { return target == ErrOffsetGone }

// Error says which offset is missing and what is there instead.
func (e *OutOfRangeError) Error() string {
	return fmt.Sprintf("%s: offset %d is out of range: the partition holds %d up to, not including, %d", e.Partition, e.Offset, e.Start, e.End)
}
