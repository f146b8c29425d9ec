package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
)

// Delivery is a cell on its way to a function.
type Delivery struct {
	cellog.Cell
	Partition kafka.Partition
	Offset    int64
	// Generation is a fencing token: a later holder of the partition has a
	// higher one.
	Generation int64
	// Attempt is 1 for the first try by this member.
	Attempt int
}

// Batch is a run of a partition's cells, in order.
type Batch struct {
	Partition  kafka.Partition
	Generation int64
	// Attempt is 1 for the first try by this member.
	Attempt int
	// Cells are in offset order. The function may keep them.
	Cells []cellog.Cell
	// Offsets has the offset of each cell.
	Offsets []int64
	// Next is what will be committed: the offset after the batch's last.
	Next int64
}

// Assignment is a partition that this member begins to read.
type Assignment struct {
	Partition  kafka.Partition
	Generation int64
	// Offset is where reading starts. OnAssign may lower it, to read again
	// what its own progress does not cover.
	Offset int64
	// Fresh says that the group never committed anything for the partition.
	Fresh bool
}

// Config says what a Feed reads and whom it hands it to. Exactly one of
// Handle and HandleBatch is set.
type Config struct {
	// Kafka says how to reach the brokers. Required.
	Kafka kafka.Config
	// Group is the consumer group. Required.
	Group string
	// Topics are column topics or merged topics; those that do not exist yet
	// are waited for. Required.
	Topics []string
	// From is where partitions start of which the group committed nothing.
	// The zero value is the first record.
	From kafka.From

	// Handle gets one cell. Cells of a row come one after the other, in
	// order; rows come in parallel. After an error the row waits, longer and
	// longer, and gets the same cell again; a panic is an error. ctx ends
	// when the partition goes to another member and the time to finish is
	// over; the result is then ignored.
	Handle func(ctx context.Context, d Delivery) error
	// HandleBatch gets a partition's cells in order, a batch at a time per
	// partition, partitions in parallel. It calls take, once, when it is ready
	// for the batch: until then more cells gather. take must not be called any
	// more when it has returned. After an error the same cells come again,
	// perhaps in other batches.
	HandleBatch func(ctx context.Context, take func() Batch) error

	// OnAssign hears of a partition before its first cell. It must return
	// within seconds; an error gives the partition back and tries again.
	OnAssign func(ctx context.Context, a *Assignment) error
	// OnRevoke hears of a partition when nothing of it runs any more.
	OnRevoke func(p kafka.Partition)
	// OnStop hears of a partition that cannot go on: a hole, records that
	// expired, a record that is no cell. Others go on.
	OnStop func(p kafka.Partition, err error)

	// Parallel bounds the rows of a partition that are handled at the same
	// time. Default 16.
	Parallel int
	// MaxCells and MaxBytes bound what a partition holds: from its first
	// unfinished cell to the last one read, plus one fetch. Defaults 4096 and
	// 8 MiB.
	MaxCells int
	MaxBytes int
	// BatchCells and BatchBytes bound a batch. Defaults 1000 and 4 MiB; one
	// cell may be larger.
	BatchCells int
	BatchBytes int
	// Drain is how long handlers may go on when a partition goes to another
	// member. Default 10 s.
	Drain time.Duration
	// CommitEvery bounds how often finished work is committed. Default 200 ms.
	CommitEvery time.Duration
	// BackoffMin and BackoffMax bound the wait after a failure: it doubles
	// each time and a random part of up to half is taken off. Defaults 50 ms
	// and 30 s.
	BackoffMin, BackoffMax time.Duration
	// SessionTimeout is how long a dead member keeps its partitions. Default
	// 10 s.
	SessionTimeout time.Duration

	// Logger; nil discards.
	Logger *slog.Logger
	// Registerer gets the metrics, labelled with the group; nil for none.
	Registerer Registerer
}

func (c Config) withDefaults() Config {
	c.Topics = slices.Clone(c.Topics)
	c.Parallel = cmp.Or(c.Parallel, 16)
	c.MaxCells = cmp.Or(c.MaxCells, 4096)
	c.MaxBytes = cmp.Or(c.MaxBytes, 8<<20)
	c.BatchCells = cmp.Or(c.BatchCells, 1000)
	c.BatchBytes = cmp.Or(c.BatchBytes, 4<<20)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	c.CommitEvery = cmp.Or(c.CommitEvery, 200*time.Millisecond)
	c.BackoffMin = cmp.Or(c.BackoffMin, 50*time.Millisecond)
	c.BackoffMax = cmp.Or(c.BackoffMax, 30*time.Second)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Kafka.Logger == nil {
		c.Kafka.Logger = c.Logger
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Group == "":
		return errors.New("feed: Group is empty")
	case len(c.Topics) == 0:
		return fmt.Errorf("feed %s: Topics is empty", c.Group)
	case (c.Handle == nil) == (c.HandleBatch == nil):
		return fmt.Errorf("feed %s: want exactly one of Handle and HandleBatch", c.Group)
	case c.Parallel < 1 || c.MaxCells < 1 || c.MaxBytes < 1 || c.BatchCells < 1 || c.BatchBytes < 1:
		return fmt.Errorf("feed %s: Parallel, MaxCells, MaxBytes, BatchCells and BatchBytes must be positive", c.Group)
	case c.BackoffMin < 0 || c.BackoffMax < c.BackoffMin:
		return fmt.Errorf("feed %s: want 0 <= BackoffMin <= BackoffMax", c.Group)
	}
	return nil
}

// backoff returns how long to wait after so many failures (1 or more).
func (c Config) backoff(failures int) time.Duration {
	d := c.BackoffMin
	for i := 1; i < failures && d < c.BackoffMax; i++ {
		d *= 2
	}
	d = min(d, c.BackoffMax)
	if half := int64(d / 2); half > 0 {
		d -= time.Duration(rand.Int64N(half))
	}
	return d
}
