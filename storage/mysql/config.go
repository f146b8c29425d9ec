package mysql

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
)

// Config is what a Store needs. New works on a copy.
type Config struct {
	// Clusters are the storage clusters in the order of their numbers; shard n
	// of a new datastore is placed on cluster n mod len(Clusters). Required.
	Clusters []storage.Cluster
	// Writers is the largest number of connections that write to one node at
	// a time, so of shards whose transactions run side by side. Default 64.
	Writers int
	// Readers is the largest number of connections that read from one node.
	// Default 32.
	Readers int
	// TransactionTimeout bounds one attempt of a write; a slower one is cut
	// off and its outcome looked up. Default 5 s.
	TransactionTimeout time.Duration
	// RefreshEvery is how often all servers are asked what they hold, besides
	// the look that a stale route causes. Default 5 s.
	RefreshEvery time.Duration
	// DialTimeout bounds a connection attempt. Default 2 s.
	DialTimeout time.Duration
	// Ack says what the answer to a put of a datastore waits for. Default:
	// storage.AckPrimary for all.
	Ack func(datastore string) storage.Ack
	// Copies is how many copies on other clusters' masters storage.AckCopy
	// asks for. Default 1.
	Copies int
	// Marks knows what is final. Required where a datastore's ack is not
	// AckPrimary.
	Marks storage.Marks
	// Masters knows which nodes are opened: a read of any other one, or one that
	// no look vouches for, is marked stale. Default: no read of a master is.
	Masters storage.Masters
	// Now is the clock that looks are held against. Default: time.Now.
	Now func() time.Time
	// Logger gets what an operator should know. Default: discard.
	Logger *slog.Logger
	// Registerer takes the metrics. Default: none.
	Registerer Registerer
}

func (c Config) withDefaults() Config {
	c.Clusters = slices.Clone(c.Clusters)
	if c.Writers == 0 {
		c.Writers = 64
	}
	if c.Readers == 0 {
		c.Readers = 32
	}
	if c.TransactionTimeout == 0 {
		c.TransactionTimeout = 5 * time.Second
	}
	if c.RefreshEvery == 0 {
		c.RefreshEvery = 5 * time.Second
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 2 * time.Second
	}
	if c.Ack == nil {
		c.Ack = func(string) storage.Ack { return storage.AckPrimary }
	}
	if c.Copies == 0 {
		c.Copies = 1
	}
	if c.Marks == nil {
		c.Marks = nothingFinal{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// nothingFinal is what is known where nobody follows the positions.
type nothingFinal struct{}

func (nothingFinal) Mark(string, cellog.ShardID) (storage.Mark, bool) { return storage.Mark{}, false }
func (nothingFinal) Changed() <-chan struct{}                         { return nil }

func (c Config) check() error {
	if len(c.Clusters) == 0 {
		return errors.New("storage/mysql: clusters: want at least one")
	}
	seen := map[string]bool{}
	for _, cl := range c.Clusters {
		if err := cl.Check(); err != nil {
			return fmt.Errorf("storage/mysql: %w", err)
		}
		if seen[cl.Name] {
			return fmt.Errorf("storage/mysql: cluster %q is there twice", cl.Name)
		}
		seen[cl.Name] = true
	}
	if c.Copies < 1 || c.Copies >= len(c.Clusters) && c.Copies > 1 {
		return fmt.Errorf("storage/mysql: copies %d: want 1 to %d, one fewer than there are clusters", c.Copies, max(len(c.Clusters)-1, 1))
	}
	if c.Writers < 0 || c.Readers < 0 {
		return fmt.Errorf("storage/mysql: writers %d, readers %d: want at least 1", c.Writers, c.Readers)
	}
	for name, d := range map[string]time.Duration{"transaction_timeout": c.TransactionTimeout, "refresh_every": c.RefreshEvery, "dial_timeout": c.DialTimeout} {
		if d < 0 {
			return fmt.Errorf("storage/mysql: %s %v: want more than zero", name, d)
		}
	}
	return nil
}
