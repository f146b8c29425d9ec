package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cellog/cellog/internal/kafka"
)

// Config says what an Indexer does.
type Config struct {
	// Kafka says how to reach the brokers. Required.
	Kafka kafka.Config
	// TopicPrefix is the prefix of all topics and of the consumer groups.
	TopicPrefix string
	// Tables keeps the entries. Required.
	Tables Tables
	// Indexes are the indexes to feed, each once.
	Indexes []*Index
	// BatchRows bounds the rows of all indexes of a datastore that are applied
	// together, but for the last partition's. Default 4096.
	BatchRows int
	// ApplyTimeout bounds one attempt to apply a batch, so that a server which
	// hangs is given up and asked for again. Default 30 s.
	ApplyTimeout time.Duration
	// Drain is how long a batch may go on when the Indexer stops or a
	// partition goes to another one. Default 10 s.
	Drain time.Duration
	// SessionTimeout is how long a dead member keeps its partitions. Default
	// 10 s.
	SessionTimeout time.Duration
	// Logger; nil discards.
	Logger *slog.Logger
	// Registerer gets the metrics; nil for none.
	Registerer Registerer
}

func (c Config) withDefaults() Config {
	c.Indexes = slices.Clone(c.Indexes)
	c.BatchRows = cmp.Or(c.BatchRows, 4096)
	c.ApplyTimeout = cmp.Or(c.ApplyTimeout, 30*time.Second)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Tables == nil:
		return errors.New("indexer: Config.Tables is missing")
	case c.ApplyTimeout < 0 || c.Drain < 0 || c.SessionTimeout < 0:
		return errors.New("indexer: Config.ApplyTimeout, Drain and SessionTimeout must not be negative")
	case c.BatchRows < 1:
		return fmt.Errorf("indexer: Config.BatchRows %d: want 1 or more, or 0 for 4096", c.BatchRows)
	}
	seen := map[string]bool{}
	for _, ix := range c.Indexes {
		if seen[ix.String()] {
			return fmt.Errorf("indexer: index %s is there twice", ix)
		}
		seen[ix.String()] = true
	}
	return nil
}
