package local

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

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
	// Minions is the number of minions of each cluster. Nil means what the data
	// directory has, and 1 for a new one.
	Minions *int
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
	// KeepReadOnly leaves every server read-only, and following whom it
	// followed, but for the first start of a directory: somebody else decides
	// which node of a cluster is its master. Default false: the one that was.
	KeepReadOnly bool
	// Restarted, if set, is called each time that a server which ended by
	// itself is back, under another pid. It must not call Stop.
	Restarted func()
	// Logger gets what happens. Default: discard.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.KafkaBrokers = slices.Clone(c.KafkaBrokers)
	if c.Minions != nil {
		n := *c.Minions
		c.Minions = &n
	}
	if c.Flavour == "" {
		c.Flavour = mysqlserver.Auto
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	switch {
	case c.DataDir == "":
		return errors.New("deploy/local: data_dir is empty")
	case c.Clusters < 0 || c.Clusters > maxNodes:
		return fmt.Errorf("deploy/local: clusters %d: want 1 to %d, or 0 for what is there", c.Clusters, maxNodes)
	case c.Minions != nil && (*c.Minions < 0 || *c.Minions > maxNodes):
		return fmt.Errorf("deploy/local: minions %d: want 0 to %d", *c.Minions, maxNodes)
	case c.Flavour != mysqlserver.Auto && c.Flavour != mysqlserver.MariaDB && c.Flavour != mysqlserver.MySQL:
		return fmt.Errorf("deploy/local: flavour %q: want auto, mariadb or mysql", c.Flavour)
	}
	return nil
}
