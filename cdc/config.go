package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog/schemas/record"
)

// Config says what a Tailer works on.
type Config struct {
	// Cluster is the storage cluster's name. Required.
	Cluster string
	// Publisher is the Kafka side. Required.
	Publisher Publisher
	// Nodes returns the servers that may be tailed, best first. It is asked at
	// each start. Required.
	Nodes func(ctx context.Context) ([]Node, error)
	// TailMaster allows to tail the master although the cluster has minions.
	// Without it a cluster that loses all its minions stalls. Default: false.
	TailMaster bool
	// Merged says whether a datastore has a merged topic. One that is switched
	// on later gets all that was published before. Default: none has.
	Merged func(datastore string) bool
	// Values returns the forms of the records of a datastore's columns.
	// Default: all JSON.
	Values func(datastore string) record.Forms
	// Beat writes a heartbeat row on the cluster's master. Default: none, and
	// then lag is not known.
	Beat func(ctx context.Context, cluster string, beat int64, at time.Time) error
	// Paused returns the newest word on whether the cluster is paused, the zero
	// value if there is none. An error means that nobody could tell: then what
	// is known stands. Asked every second. Default: it never is.
	Paused func(ctx context.Context) (Pause, error)
	// Heads calls f for every shard that the cluster's master has, so that the
	// lag in cells is known whatever the tailer reads. Asked every HeadsEvery,
	// and bounded by that time or 10 s, whichever is longer. Default: none, and
	// the lag in cells is 0.
	Heads func(ctx context.Context, f func(Head) error) error
	// HeadsEvery is the time between two looks at the heads; 20 times what a look
	// takes, if that is longer. Default: 5 s.
	HeadsEvery time.Duration
	// BeatEvery is the time between heartbeats. Default: 1 s.
	BeatEvery time.Duration
	// SilentAfter is for how long a node may show nothing, although heartbeats
	// are written on the master, before another one is looked for. Default: 15 s.
	SilentAfter time.Duration
	// StandBy is for how long another tailer's heartbeats must be missing
	// before this one takes over. Default: 3 s; at least twice BeatEvery.
	StandBy time.Duration
	// Mark is what this tailer is known by. One that restarts under its old
	// mark does not stand by for itself; never give two the same. Default:
	// random.
	Mark string
	// MaxTransactionCells and MaxTransactionBytes bound a Kafka transaction
	// while the tailer is behind; one that touches many shards may hold 16 cells a
	// shard. Defaults: 10,000 and 16 MiB.
	MaxTransactionCells int
	MaxTransactionBytes int
	// MaxQueueBytes bounds what is read and not yet committed. Default: 64
	// MiB; one cell that is bigger passes alone.
	MaxQueueBytes int
	// Transcoders is how many goroutines turn stored bodies into records.
	// Default: GOMAXPROCS.
	Transcoders int
	// FillWait is how long a row that the binlog has shown may be missing from
	// the entity table before its shard stops: the binlog is written before
	// the row can be read. Default: 10 s.
	FillWait time.Duration
	// FillShards is how many shards are read at a time from the entity tables.
	// Default: 4.
	FillShards int
	// FillMaxLag is how far a minion may be behind while its entity tables are
	// read: beyond it reading pauses. Zero: it never pauses.
	FillMaxLag time.Duration
	// LookEvery is how often the shards' heads are compared with what was
	// published, for cells that the binlog never shows. Default: 1 min.
	LookEvery time.Duration
	// Logger is for what an operator should know. Default: none.
	Logger *slog.Logger
	// Registerer takes the metrics. Default: none.
	Registerer Registerer
}

func (c Config) withDefaults() (Config, error) {
	if c.Cluster == "" {
		return c, errors.New("cdc: Cluster is empty: want the storage cluster's name")
	}
	if c.Publisher == nil || c.Nodes == nil {
		return c, errors.New("cdc: Publisher and Nodes are required")
	}
	if c.Merged == nil {
		c.Merged = func(string) bool { return false }
	}
	if c.Values == nil {
		c.Values = func(string) record.Forms { return nil }
	}
	if c.BeatEvery == 0 {
		c.BeatEvery = time.Second
	}
	if c.HeadsEvery <= 0 {
		c.HeadsEvery = 5 * time.Second
	}
	if c.SilentAfter <= 0 {
		c.SilentAfter = silentAfter
	}
	if c.StandBy == 0 {
		c.StandBy = 3 * c.BeatEvery
	}
	if c.BeatEvery < 0 || c.StandBy < 2*c.BeatEvery {
		return c, fmt.Errorf("cdc: StandBy %s, BeatEvery %s: want StandBy at least twice BeatEvery, or two tailers take each other for dead", c.StandBy, c.BeatEvery)
	}
	if c.Mark == "" {
		c.Mark = uuid.NewString()
	}
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.MaxTransactionCells, 10_000)
	def(&c.MaxTransactionBytes, 16<<20)
	def(&c.MaxQueueBytes, 64<<20)
	def(&c.Transcoders, runtime.GOMAXPROCS(0))
	def(&c.FillShards, 4)
	if c.FillWait <= 0 {
		c.FillWait = 10 * time.Second
	}
	if c.LookEvery <= 0 {
		c.LookEvery = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
