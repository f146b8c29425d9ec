package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog/schemas/record"
)

// Fetched is a record and where it was.
type Fetched struct {
	record.Record
	Topic     string
	Partition int32
	Offset    int64

	producerID    int64
	producerEpoch int16
}

func fetched(r *kgo.Record) Fetched {
	f := Fetched{
		Record: record.Record{Key: r.Key, Value: r.Value, Time: r.Timestamp},
		Topic:  r.Topic, Partition: r.Partition, Offset: r.Offset,
		producerID: r.ProducerID, producerEpoch: r.ProducerEpoch,
	}
	if len(r.Headers) > 0 {
		f.Headers = make([]record.Header, len(r.Headers))
		for i, h := range r.Headers {
			f.Headers[i] = record.Header(h)
		}
	}
	return f
}

// ReadRange calls f for every committed record of a partition from offset from
// on, in order, until all below offset to were seen; to is an end that Offsets
// or CommittedOffsets returned. An open transaction below to is waited for: it
// ends with its producer, its timeout, or ctx. An error of f ends the reading
// and is returned.
//
// It returns ErrOffsetGone if from is not in the partition.
func ReadRange(ctx context.Context, cfg Config, topic string, partition int32, from, to int64, f func(Fetched) error) error {
	if from >= to {
		return nil
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	cl, err := kgo.NewClient(append(cfg.options(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Without control records the end of a partition whose last record
		// is a transaction's marker, or aborted, would never be reached.
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.FetchMaxPartitionBytes(8<<20),
	)...)
	if err != nil {
		return convert(err)
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fetches.Err0(); err != nil {
			return convert(err)
		}
		var failed error
		fetches.EachError(func(_ string, _ int32, err error) { failed = errors.Join(failed, err) })
		if failed != nil {
			return fmt.Errorf("read %s, partition %d: %w", topic, partition, convert(failed))
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			if r.Offset >= to {
				return nil
			}
			if !r.Attrs.IsControl() {
				if err := f(fetched(r)); err != nil {
					return err
				}
			}
			if r.Offset+1 >= to {
				return nil
			}
		}
	}
}

// Follow calls f for every record of a partition from offset from on, whether
// its transaction is committed or still open, until ctx ends or f returns an
// error, which is returned.
func Follow(ctx context.Context, cfg Config, topic string, partition int32, from int64, f func(Fetched) error) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	cl, err := kgo.NewClient(append(cfg.options(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadUncommitted()),
		kgo.FetchMaxWait(100*time.Millisecond),
	)...)
	if err != nil {
		return convert(err)
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		var failed error
		fetches.EachError(func(_ string, _ int32, err error) { failed = errors.Join(failed, err) })
		if failed != nil {
			return fmt.Errorf("follow %s, partition %d: %w", topic, partition, convert(failed))
		}
		for it := fetches.RecordIter(); !it.Done(); {
			if err := f(fetched(it.Next())); err != nil {
				return err
			}
		}
	}
}

// Place is one offset of one partition.
type Place struct {
	Topic     string
	Partition int32
	Offset    int64
}

// FetchAt returns exactly the records at the given places. A place is not in
// the result if its partition has no record there: it ends before, or a
// transaction's marker is there. One that lies before the partition's start
// (expired) or whose topic is gone is missing too; Offsets tells which.
func FetchAt(ctx context.Context, cfg Config, places []Place) (map[Place]Fetched, error) {
	out := make(map[Place]Fetched, len(places))
	if len(places) == 0 {
		return out, nil
	}
	adm, err := NewAdmin(cfg)
	if err != nil {
		return nil, err
	}
	defer adm.Close()
	bounds := make(map[string]map[int32]Offsets)
	// One round takes one place of each partition.
	type part struct {
		topic     string
		partition int32
	}
	todo := make(map[part][]int64)
	rounds := 0
	for _, pl := range places {
		b, ok := bounds[pl.Topic]
		if !ok {
			if b, err = adm.Offsets(ctx, pl.Topic); err != nil && !errors.Is(err, ErrUnknownTopic) {
				return nil, err
			}
			bounds[pl.Topic] = b
		}
		if o, ok := b[pl.Partition]; !ok || pl.Offset < o.Start || pl.Offset >= o.End {
			continue
		}
		k := part{pl.Topic, pl.Partition}
		todo[k] = append(todo[k], pl.Offset)
		rounds = max(rounds, len(todo[k]))
	}
	for i := range rounds {
		round := make(map[string]map[int32]kgo.Offset)
		left := 0
		for k, offsets := range todo {
			if i >= len(offsets) {
				continue
			}
			if round[k.topic] == nil {
				round[k.topic] = make(map[int32]kgo.Offset)
			}
			round[k.topic][k.partition] = kgo.NewOffset().At(offsets[i])
			left++
		}
		if err := fetchRound(ctx, cfg, round, left, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func fetchRound(ctx context.Context, cfg Config, round map[string]map[int32]kgo.Offset, left int, out map[Place]Fetched) error {
	want := make(map[string]map[int32]int64, len(round))
	for t, ps := range round {
		want[t] = make(map[int32]int64, len(ps))
		for p, o := range ps {
			want[t][p] = o.EpochOffset().Offset
		}
	}
	cl, err := kgo.NewClient(append(cfg.options(),
		kgo.ConsumePartitions(round),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		// The places are committed or the position that names them is wrong:
		// what is there now is what matters, so nothing is waited for.
		kgo.FetchIsolationLevel(kgo.ReadUncommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxPartitionBytes(1), // the batch at the offset, no more
		kgo.FetchMaxWait(100*time.Millisecond),
	)...)
	if err != nil {
		return convert(err)
	}
	defer cl.Close()
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		var failed error
		fetches.EachError(func(_ string, _ int32, err error) { failed = errors.Join(failed, err) })
		if failed != nil {
			return fmt.Errorf("fetch single records: %w", convert(failed))
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			o, ok := want[r.Topic][r.Partition]
			if !ok {
				continue
			}
			delete(want[r.Topic], r.Partition)
			left--
			if r.Offset == o && !r.Attrs.IsControl() {
				out[Place{r.Topic, r.Partition, o}] = fetched(r)
			}
			cl.PauseFetchPartitions(map[string][]int32{r.Topic: {r.Partition}})
		}
	}
	return nil
}
