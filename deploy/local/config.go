package local

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cellog/cellog/internal/mysqlserver"
)

// maxNodes bounds clusters and minions: more are a mistake on one machine.
const maxNodes = 16

// Config is what Start needs. Start works on a copy.
type Config struct {
	// DataDir holds everything; it is made when missing. Required.
	DataDir string
	// Clusters is the number of storage clusters. 0 means what the data
	// directory has, and 2 for a new one.
	Clusters int
	// Minions is the number of minions of every cluster, or one number for
	// each. Nil means what the data directory has, and 1 for a new one.
	Minions []int
	// Flavour is the kind of server. Default: what the data directory has, and
	// for a new one whatever is found first.
	Flavour mysqlserver.Flavour
	// Binary is the path of the server's binary. Default: looked for.
	Binary string
	// BufferPool is the size of each server's page cache in bytes. Default 64
	// MiB.
	BufferPool int64
	// TemplateDir is where template data directories are kept. Default: below
	// the user's cache directory.
	TemplateDir string
	// KafkaBrokers are the addresses of a Kafka that is there. Empty means the
	// embedded broker.
	KafkaBrokers []string
	// KafkaSync makes the embedded broker sync every batch to the disk before
	// it acknowledges: then it is safe over a power cut too, at 50 syncs and
	// more a transaction. Default false: safe over kill -9; a shard whose
	// topic lost its tail in a power cut is stopped by its tailer, and
	// rebuilt from MySQL by `cellog tailer repair`.
	KafkaSync bool
	// LeaveReadOnly is for a caller that decides itself which node of each
	// cluster is writable and whom the others follow: once a cluster has been up,
	// its nodes start read-only, minions follow whom they followed, and the rest
	// is the caller's. Default false: the master is made writable, and minions
	// are made to follow it, at each start.
	LeaveReadOnly bool
	// ServerEnv, if set, gives a node's server more environment variables,
	// NAME=value.
	ServerEnv func(node string) []string
	// RestartWait is the longest wait before a server that ended by itself is
	// started again; the first is 100 ms, or this if it is shorter. Default 10 s.
	RestartWait time.Duration
	// Restarted, if set, is called each time that a server which ended by
	// itself is back, under another pid. It must not call Stop.
	Restarted func()
	// Logger gets what happens. Default: discard.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.KafkaBrokers = slices.Clone(c.KafkaBrokers)
	c.Minions = slices.Clone(c.Minions)
	if c.Flavour == "" {
		c.Flavour = mysqlserver.Auto
	}
	if c.RestartWait == 0 {
		c.RestartWait = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// minions returns how many minions cluster i is to have.
func (c Config) minions(i int) int {
	switch {
	case len(c.Minions) == 0:
		return 1
	case len(c.Minions) == 1:
		return c.Minions[0]
	}
	return c.Minions[i]
}

func (c Config) check() error {
	switch {
	case c.DataDir == "":
		return errors.New("deploy/local: data_dir is empty")
	case c.Clusters < 0 || c.Clusters > maxNodes:
		return fmt.Errorf("deploy/local: clusters %d: want 1 to %d, or 0 for what is there", c.Clusters, maxNodes)
	case slices.ContainsFunc(c.Minions, func(n int) bool { return n < 0 || n > maxNodes }):
		return fmt.Errorf("deploy/local: minions %v: want 0 to %d", c.Minions, maxNodes)
	case len(c.Minions) > 1 && c.Clusters > 0 && c.Clusters != len(c.Minions):
		return fmt.Errorf("deploy/local: minions %v: want one number, or one for each of the %d clusters", c.Minions, c.Clusters)
	case c.Flavour != mysqlserver.Auto && c.Flavour != mysqlserver.MariaDB && c.Flavour != mysqlserver.MySQL:
		return fmt.Errorf("deploy/local: flavour %q: want auto, mariadb or mysql", c.Flavour)
	}
	return nil
}
