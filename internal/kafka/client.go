package kafka

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says how to reach the brokers. It is shared by producers, readers,
// consumers and the admin.
type Config struct {
	// Addrs are the first brokers to ask, host:port each. There must be one.
	Addrs []string
	// ClientID names this client in the broker's logs. Default: cellog.
	ClientID string
	// Logger receives the client's warnings and errors; it never sees records.
	// Default: none.
	Logger *slog.Logger
}

func (c Config) validate() error {
	if len(c.Addrs) == 0 {
		return errors.New("kafka: no broker address: want at least one host:port")
	}
	for _, a := range c.Addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("kafka: broker address %q: want host:port", a)
		}
	}
	return nil
}

// options returns what every client of this package is built with.
func (c Config) options() []kgo.Opt {
	id := c.ClientID
	if id == "" {
		id = "cellog"
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(slices.Clone(c.Addrs)...),
		kgo.ClientID(id),
		kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.RetryBackoffFn(backoff),
	}
	if c.Logger != nil {
		opts = append(opts, kgo.WithLogger(clientLogger{c.Logger}))
	}
	return opts
}

// backoff starts at 1 ms, since most retries of a transactional producer are
// for a broker that needs a moment, and doubles to 500 ms: a constant 1 ms was
// seen to use up all retries at a broker that was starting.
func backoff(try int) time.Duration {
	return min(time.Millisecond<<min(max(try-1, 0), 10), 500*time.Millisecond)
}

// clientLogger passes the client's warnings and errors on.
type clientLogger struct{ l *slog.Logger }

func (c clientLogger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (c clientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if level == kgo.LogLevelError {
		c.l.Error(msg, keyvals...)
		return
	}
	c.l.Warn(msg, keyvals...)
}
