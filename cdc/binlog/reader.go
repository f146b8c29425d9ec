package binlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cellog/cellog/cdc"
)

// Config says which server to read, and how.
type Config struct {
	// Addr is host:port or the path of a unix socket. Required.
	Addr     string
	User     string
	Password string
	// ServerID is what the server knows this reader by; two readers with one
	// id throw each other out. Default: a random number from 2^31 on.
	ServerID uint32
	// HeartbeatPeriod is how often an idle server sends a sign of life.
	// Default: 2 s.
	HeartbeatPeriod time.Duration
	// ReadTimeout is how long nothing may come before the connection is given
	// up. Default: 10 s; at least twice the heartbeat period.
	ReadTimeout time.Duration
	// MaxTransactionBytes bounds the memory of one transaction; what is bigger
	// is read from the entity table. Default: 32 MiB.
	MaxTransactionBytes int
}

func (c Config) withDefaults() (Config, error) {
	if c.Addr == "" {
		return c, errors.New("binlog: Addr is empty: want host:port or a socket's path")
	}
	if c.ServerID == 0 {
		c.ServerID = 1<<31 + rand.Uint32N(1<<31)
	}
	if c.HeartbeatPeriod <= 0 {
		c.HeartbeatPeriod = 2 * time.Second
	}
	if c.ReadTimeout <= 0 {
		c.ReadTimeout = 10 * time.Second
	}
	if c.ReadTimeout < 2*c.HeartbeatPeriod {
		return c, fmt.Errorf("binlog: read timeout %s: want at least twice the heartbeat period of %s", c.ReadTimeout, c.HeartbeatPeriod)
	}
	if c.MaxTransactionBytes <= 0 {
		c.MaxTransactionBytes = 32 << 20
	}
	return c, nil
}

// dialTimeout bounds an attempt to connect: a machine that is gone must not
// hold up the change to another one.
const dialTimeout = 3 * time.Second

// writeTimeout is for how long the server bears that nothing is taken from it:
// the tailer may be on a long way through entity, or Kafka may be away. Servers
// bear 60 s by default.
const writeTimeout = 10 * time.Minute

// Reader reads one server's binlog. It implements cdc.Source and holds no
// connection between calls.
type Reader struct{ cfg Config }

// New returns a Reader; it connects when it is used.
func New(cfg Config) (*Reader, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reader{cfg: cfg}, nil
}

// Now returns the GTID set of everything that the server has committed.
func (r *Reader) Now(ctx context.Context) (string, error) {
	_, now, err := r.ask(ctx)
	return now, err
}

// ask returns the server's flavour and present position.
func (r *Reader) ask(ctx context.Context) (flavour, now string, err error) {
	conn, err := client.ConnectWithContext(ctx, r.cfg.Addr, r.cfg.User, r.cfg.Password, "", dialTimeout, func(c *client.Conn) error {
		c.ReadTimeout, c.WriteTimeout = r.cfg.ReadTimeout, r.cfg.ReadTimeout // a black hole does not even greet
		return nil
	})
	if err != nil {
		return "", "", convert(fmt.Sprintf("connect to %s", r.cfg.Addr), err)
	}
	defer conn.Close()
	// The client's own Close is not for another goroutine than the one that asks.
	socket := conn.Conn.Conn
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	one := func(query string) (string, error) {
		res, err := conn.Execute(query)
		if err != nil {
			return "", convert(query, err)
		}
		return res.GetString(0, 0)
	}
	version, err := one("SELECT VERSION()")
	if err != nil {
		return "", "", err
	}
	flavour, query := mysql.MySQLFlavor, "SELECT @@GLOBAL.gtid_executed"
	if strings.Contains(version, "MariaDB") {
		flavour, query = mysql.MariaDBFlavor, "SELECT @@GLOBAL.gtid_binlog_pos"
	}
	if now, err = one(query); err != nil {
		return "", "", err
	}
	return flavour, strings.ReplaceAll(now, "\n", ""), nil
}

// Run yields the transactions after a position; see cdc.Source.
func (r *Reader) Run(ctx context.Context, from string, handle func(*cdc.Transaction) error) error {
	flavour, _, err := r.ask(ctx)
	if err != nil {
		return err
	}
	gset, err := mysql.ParseGTIDSet(flavour, from)
	if err != nil {
		// A position of the other flavour, after a cluster changed it.
		return fmt.Errorf("position %.200q: %w", from, cdc.ErrPositionLost)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newStream(ctx, flavour, gset, r.cfg.MaxTransactionBytes, handle)
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: r.cfg.ServerID,
		Flavor:   flavour,
		// With a zero Port the host is taken as the whole address.
		Host:             r.cfg.Addr,
		User:             r.cfg.User,
		Password:         r.cfg.Password,
		HeartbeatPeriod:  r.cfg.HeartbeatPeriod,
		ReadTimeout:      r.cfg.ReadTimeout,
		DisableRetrySync: true,
		DiscardGTIDSet:   true,
		RecvBufferSize:   1 << 20,
		Dialer:           dialer(r.cfg.ReadTimeout / 10),
		// The library would unpack a compressed transaction as a whole.
		RawModeEnabled:          true,
		SynchronousEventHandler: s,
		Option: func(c *client.Conn) error {
			_, err := c.Execute(fmt.Sprintf("SET SESSION net_write_timeout = %d", int(writeTimeout.Seconds())))
			return err
		},
		// Its messages may hold row contents.
		Logger: slog.New(slog.DiscardHandler),
	})
	streamer, err := syncer.StartSyncGTID(gset.Clone())
	if err != nil {
		syncer.Close()
		return convert("start the binlog", err)
	}
	// Events go to the handler; only the end comes this way.
	for err == nil {
		_, err = streamer.GetEvent(ctx)
	}
	over := ctx.Err()
	cancel()       // lets go of a handler that waits
	syncer.Close() // returns when the handler has
	s.close()
	switch {
	case s.err != nil:
		return s.err
	case over != nil:
		return over
	}
	return convert("read the binlog", err)
}

// errMasterFatal is the server's answer when it cannot send from the position.
const errMasterFatal = 1236

// convert keeps row contents out of errors and gives a lost position its mark.
func convert(doing string, err error) error {
	var my *mysql.MyError
	if errors.As(err, &my) {
		if my.Code == errMasterFatal {
			return fmt.Errorf("%s: %w (%s)", doing, cdc.ErrPositionLost, my.Message)
		}
		return fmt.Errorf("%s: server error %d: %s", doing, my.Code, my.Message)
	}
	var ev *replication.EventError
	if errors.As(err, &ev) {
		return fmt.Errorf("%s: cannot decode a %s at %d, %d bytes long: %w", doing, ev.Header.EventType, ev.Header.LogPos, ev.Header.EventSize, cdc.ErrPositionLost)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// dialer dials connections that put a read deadline off only if it moves by slack
// or more: the library puts it off with each packet, of which there are some
// hundred thousand a second, and each time costs as much as the packet itself.
func dialer(slack time.Duration) client.Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, slack: slack}, nil
	}
}

type conn struct {
	net.Conn
	slack time.Duration

	mu  sync.Mutex
	set time.Time // the read deadline
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.IsZero() && !c.set.IsZero() && !t.Before(c.set) && t.Sub(c.set) < c.slack {
		return nil
	}
	c.set = t
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = t
	return c.Conn.SetDeadline(t)
}
