package mysqlserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Config is what Start needs. Start works on a copy.
type Config struct {
	// Dir is the server's own directory; it is made when missing. Required.
	Dir string
	// Flavour is the kind of server to run. Default Auto: whatever is found
	// first, MariaDB before MySQL.
	Flavour Flavour
	// Binary is the path of the server's binary. Default: looked for, see Find.
	Binary string
	// Port is the TCP port on 127.0.0.1. 0 means a free one.
	Port int
	// ServerID is the server's id in replication, 1 or more. Required.
	ServerID uint32
	// BufferPool is the size of InnoDB's page cache in bytes. Default 64 MiB.
	BufferPool int64
	// RedoLog is the size of InnoDB's redo log in bytes. Default 64 MiB.
	RedoLog int64
	// TemplateDir is where template data directories are kept. Default
	// cellog/mysql below the user's cache directory.
	TemplateDir string
	// StartTimeout bounds how long the server may take to answer, crash
	// recovery included. Default 60 s.
	StartTimeout time.Duration
	// Options are more options of the server, such as "--max-connections=50".
	// They come last, so they win.
	Options []string
	// Env are more environment variables of the server, NAME=value. Default
	// none.
	Env []string
}

func (c Config) withDefaults() Config {
	c.Options, c.Env = slices.Clone(c.Options), slices.Clone(c.Env)
	if c.Flavour == "" {
		c.Flavour = Auto
	}
	if c.BufferPool == 0 {
		c.BufferPool = 64 << 20
	}
	if c.RedoLog == 0 {
		c.RedoLog = 64 << 20
	}
	if c.TemplateDir == "" {
		base, err := os.UserCacheDir()
		if err != nil { // no HOME
			base = filepath.Join(os.TempDir(), "cellog-cache-"+strconv.Itoa(os.Getuid()))
		}
		c.TemplateDir = filepath.Join(base, "cellog", "mysql")
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = time.Minute
	}
	return c
}

func (c Config) check() error {
	switch {
	case c.Dir == "":
		return errors.New("mysqlserver: dir is empty")
	case c.Flavour != Auto && c.Flavour != MariaDB && c.Flavour != MySQL:
		return fmt.Errorf("mysqlserver: flavour %q: want auto, mariadb or mysql", c.Flavour)
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("mysqlserver: port %d: want 1 to 65535, or 0 for a free one", c.Port)
	case c.ServerID == 0:
		return errors.New("mysqlserver: server_id is 0: want 1 or more, another one for each server of a cluster")
	case c.BufferPool < 8<<20:
		return fmt.Errorf("mysqlserver: buffer_pool %d: want at least 8 MiB", c.BufferPool)
	case c.RedoLog < 8<<20:
		return fmt.Errorf("mysqlserver: redo_log %d: want at least 8 MiB", c.RedoLog)
	case c.StartTimeout < 0:
		return fmt.Errorf("mysqlserver: start_timeout %v: want more than zero", c.StartTimeout)
	}
	return nil
}

// options returns the command line of a server.
func (c Config) options(b Binary, data, socket string, port int) []string {
	mib := func(n int64) string { return strconv.FormatInt(n>>20, 10) + "M" }
	o := append(b.noDefaults(),
		"--datadir="+data,
		"--tmpdir="+filepath.Join(c.Dir, "tmp"),
		"--pid-file="+filepath.Join(c.Dir, "mysqld.pid"),
		"--socket="+socket,
		"--port="+strconv.Itoa(port),
		"--bind-address=127.0.0.1",
		"--skip-name-resolve",
		"--local-infile=OFF",
		"--server-id="+strconv.FormatUint(uint64(c.ServerID), 10),
		// What the tailer needs, and what keeps an acknowledged commit.
		"--log-bin="+filepath.Join(data, "binlog"),
		"--relay-log="+filepath.Join(data, "relay"),
		"--binlog-row-image=FULL",
		"--sync-binlog=1",
		"--innodb-flush-log-at-trx-commit=1",
		"--relay-log-recovery=ON",
		"--max-allowed-packet=1G",
		"--read-only=ON",
		"--character-set-server=utf8mb4",
		"--default-time-zone=+00:00",
		// Small, since several run on one machine.
		"--max-connections=500",
		"--performance-schema=OFF",
		"--innodb-buffer-pool-size="+mib(c.BufferPool),
		"--innodb-log-buffer-size=8M",
		"--key-buffer-size=1M",
		"--table-open-cache=2000",
	)
	o = append(o, asRoot()...)
	switch b.Flavour {
	case MariaDB:
		o = append(o,
			"--binlog-format=ROW",
			"--gtid-strict-mode=ON",
			"--gtid-domain-id=0",
			"--master-verify-checksum=ON", // what it sends carries no checksum
			"--log-slave-updates=ON",
			"--slave-parallel-threads=4", // optimistic: commits in the master's order
			"--binlog-annotate-row-events=OFF",
			"--replicate-annotate-row-events=OFF",
			"--innodb-log-file-size="+mib(c.RedoLog),
			"--aria-pagecache-buffer-size=8M",
		)
	case MySQL:
		o = append(o,
			"--gtid-mode=ON",
			"--enforce-gtid-consistency=ON",
			"--log-replica-updates=ON",
			"--replica-parallel-workers=4",
			"--replica-preserve-commit-order=ON",
			"--super-read-only=ON",
			"--innodb-redo-log-capacity="+mib(c.RedoLog),
			"--mysqlx=OFF",
			"--secure-file-priv=NULL",
			"--auto-generate-certs=OFF",
		)
	}
	return append(o, c.Options...)
}
