package devbroker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/cellog/cellog/internal/freeport"
)

// never is an interval in milliseconds that no process outlives (100 years).
const never = "3153600000000"

// Config is what Start needs.
type Config struct {
	// Dir is the data directory; it is made when missing. One broker uses it
	// at a time: the caller sees to that. Required.
	Dir string
	// Port is the TCP port on 127.0.0.1. 0 means a free one.
	Port int
	// NoSync leaves it to the operating system when data reaches the disk:
	// faster, and safe over kill -9, but not over a power cut. Default false.
	NoSync bool
	// CompactAbove is the size in bytes from which on a partition of a
	// compacted topic is compacted at the start. Default 4 MiB.
	CompactAbove int64
	// Logger gets what was repaired. Default: discard.
	Logger *slog.Logger
}

// Broker is a running broker.
type Broker struct {
	port    int
	cluster *kfake.Cluster
	stop    sync.Once
}

// Start repairs and compacts the data, and starts the broker.
func Start(cfg Config) (*Broker, error) {
	if cfg.Dir == "" {
		return nil, errors.New("devbroker: dir is empty")
	}
	if cfg.Port == 0 {
		var err error
		if cfg.Port, err = freeport.Take(1); err != nil {
			return nil, fmt.Errorf("devbroker: %w", err)
		}
	}
	if cfg.Port < 0 || cfg.Port > 65535 {
		return nil, fmt.Errorf("devbroker: port %d: want 1 to 65535, or 0 for a free one", cfg.Port)
	}
	if cfg.CompactAbove == 0 {
		cfg.CompactAbove = 4 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("devbroker: %w", err)
	}
	if err := restoreBackup(cfg.Dir); err != nil {
		return nil, fmt.Errorf("devbroker: undo a compaction that was cut off: %w", err)
	}
	if err := repair(cfg.Dir, cfg.Logger); err != nil {
		return nil, fmt.Errorf("devbroker: repair: %w", err)
	}
	if err := compact(cfg.Dir, cfg.CompactAbove, cfg.Logger); err != nil {
		return nil, fmt.Errorf("devbroker: compact: %w", err)
	}
	opts := []kfake.Opt{
		kfake.Ports(cfg.Port), kfake.DataDir(cfg.Dir),
		kfake.BrokerConfigs(map[string]string{
			"log.retention.ms":       "-1",
			"log.cleaner.backoff.ms": never, // kfake's compaction rewrites files in place: compact does it with a backup
		}),
	}
	if !cfg.NoSync {
		opts = append(opts, kfake.SyncWrites())
	}
	c, err := kfake.NewCluster(opts...)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: 127.0.0.1:%d", ErrPortTaken, cfg.Port)
	}
	if err != nil {
		return nil, fmt.Errorf("devbroker: %w", err)
	}
	_, port, err := net.SplitHostPort(c.ListenAddrs()[0])
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("devbroker: %w", err)
	}
	b := &Broker{cluster: c}
	if b.port, err = strconv.Atoi(port); err != nil {
		c.Close()
		return nil, fmt.Errorf("devbroker: %w", err)
	}
	return b, nil
}

// Addrs returns the bootstrap servers.
func (b *Broker) Addrs() []string {
	return []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port))}
}

// Port returns the TCP port.
func (b *Broker) Port() int { return b.port }

// Stop writes all state and ends the broker; twice is fine.
func (b *Broker) Stop() { b.stop.Do(b.cluster.Close) }
