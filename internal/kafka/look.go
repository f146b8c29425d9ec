package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Looking says how FollowLooking follows a partition.
type Looking struct {
	Topic     string
	Partition int32
	// From is the first offset to read.
	From int64
	// Every is how often the partition's end is looked up, at most.
	Every time.Duration
	// Record gets each committed record, in order; its error ends it all.
	Record func(Fetched) error
	// Looked is told that Record has had all that was committed at a time: the
	// one just before the broker was asked.
	Looked func(at time.Time)
}

// lookPatience bounds the question for a partition's end: nothing is read
// meanwhile. Only a test changes it.
var lookPatience = time.Second

// FollowLooking calls l.Record for every committed record of a partition, as it
// comes, until ctx ends or an error, which is returned; and l.Looked again and
// again, also while nothing comes: silence alone does not tell an idle partition
// from a broker that is out of reach. A look that fails is left out, and holds up
// no record; only that the topic is gone ends it all.
func FollowLooking(ctx context.Context, cfg Config, l Looking) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	cl, err := kgo.NewClient(append(cfg.options(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.Topic: {l.Partition: kgo.NewOffset().At(l.From)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the end may lie behind a transaction's marker
		kgo.FetchMaxWait(500*time.Millisecond),
	)...)
	if err != nil {
		return convert(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	next := l.From // the offset behind what was read
	var asked time.Time
	end := int64(-1) // what was committed at asked; -1: all was read by then
	for {
		if end < 0 && time.Since(asked) >= l.Every {
			asked = time.Now()
			at, err := committedEnd(ctx, adm, l.Topic, l.Partition)
			switch {
			case err == nil:
				end = at
			case errors.Is(err, ErrUnknownTopic):
				return err
			}
		}
		if end >= 0 && next >= end {
			l.Looked(asked)
			end = -1
		}
		if next, err = poll(ctx, cl, &l, next); err != nil {
			return err
		}
	}
}

func committedEnd(ctx context.Context, adm *kadm.Client, topic string, partition int32) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return 0, convert(err)
	}
	return listedOffset(ends, topic, partition)
}

// poll hands over what comes first until the next look is due, and returns the
// offset behind it.
func poll(ctx context.Context, cl *kgo.Client, l *Looking, next int64) (int64, error) {
	ask, cancel := context.WithTimeout(ctx, l.Every)
	defer cancel()
	fetches := cl.PollFetches(ask)
	if err := ctx.Err(); err != nil {
		return next, err
	}
	if ask.Err() == nil {
		var failed error
		fetches.EachError(func(_ string, _ int32, err error) { failed = errors.Join(failed, err) })
		if failed != nil {
			return next, fmt.Errorf("follow %s, partition %d: %w", l.Topic, l.Partition, convert(failed))
		}
	}
	for it := fetches.RecordIter(); !it.Done(); {
		r := it.Next()
		if !r.Attrs.IsControl() {
			if err := l.Record(fetched(r)); err != nil {
				return next, err
			}
		}
		next = r.Offset + 1
	}
	return next, nil
}
