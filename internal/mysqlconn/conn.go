package mysqlconn

import (
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// maxPacket is the largest packet that MySQL's protocol knows.
const maxPacket = 1 << 30

// Config says where a server is and how its sessions are set.
type Config struct {
	// Addr is host:port, or the absolute path of a unix socket. Required.
	Addr string
	// User is the account's name. Required.
	User string
	// Password is the account's password; empty means none.
	Password string
	// Database is the sessions' default database; empty means none.
	Database string
	// MultiStatements lets one packet carry several statements.
	MultiStatements bool
	// KeepReadOnly hands out the errors of a read-only server (IsReadOnly)
	// and keeps the session. Default false: the session is thrown away and
	// the error is lost (IsLost).
	KeepReadOnly bool
	// MaxOpen bounds the pool's connections, idle ones included. 0 means 32.
	MaxOpen int
	// DialTimeout bounds a connection attempt. 0 means 5 s.
	DialTimeout time.Duration
	// ReadTimeout and WriteTimeout bound a single read or write on the wire.
	// 0 means unbounded: the statement's context decides.
	ReadTimeout, WriteTimeout time.Duration
	// Session are system variables that every session sets first. A value is
	// SQL, so text needs its own quotes: {"time_zone": "'+00:00'"}.
	Session map[string]string
	// TLS, when not nil, encrypts the connections of a TCP address.
	TLS *tls.Config
}

func (c Config) withDefaults() Config {
	c.Session = maps.Clone(c.Session)
	if c.MaxOpen == 0 {
		c.MaxOpen = 32
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	return c
}

func (c Config) check() error {
	switch {
	case c.Addr == "":
		return errors.New("mysqlconn: addr is empty: want host:port or the path of a unix socket")
	case !strings.HasPrefix(c.Addr, "/") && !strings.Contains(c.Addr, ":"):
		return fmt.Errorf("mysqlconn: addr %q: want host:port or the absolute path of a unix socket", c.Addr)
	case c.User == "":
		return fmt.Errorf("mysqlconn: user for %s is empty", c.Addr)
	case c.MaxOpen < 0:
		return fmt.Errorf("mysqlconn: max_open %d: want at least 1, or 0 for 32", c.MaxOpen)
	}
	return nil
}

// Open makes a pool. It contacts no server; the first statement does. The
// error, if any, names the field that is wrong.
func Open(cfg Config) (*sql.DB, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	d := mysql.NewConfig()
	d.Net = "tcp"
	if strings.HasPrefix(cfg.Addr, "/") {
		d.Net = "unix"
	} else {
		d.TLS = cfg.TLS
	}
	d.Addr, d.User, d.Passwd, d.DBName = cfg.Addr, cfg.User, cfg.Password, cfg.Database
	d.Timeout, d.ReadTimeout, d.WriteTimeout = cfg.DialTimeout, cfg.ReadTimeout, cfg.WriteTimeout
	d.MaxAllowedPacket = maxPacket
	d.InterpolateParams = true
	d.ParseTime = true
	d.MultiStatements = cfg.MultiStatements
	d.RejectReadOnly = !cfg.KeepReadOnly
	d.Params = cfg.Session
	d.Logger = &mysql.NopLogger{} // what it would print is in the errors too
	c, err := mysql.NewConnector(d)
	if err != nil {
		return nil, fmt.Errorf("mysqlconn: %s: %w", cfg.Addr, err)
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(cfg.MaxOpen)
	db.SetMaxIdleConns(cfg.MaxOpen)
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// Close closes a pool. That a connection was broken already, so that its server
// could not be told, is no error: nothing is pending on it.
func Close(db *sql.DB) error {
	err := db.Close()
	// The driver does not export the error of a QUIT that it could not send.
	if IsLost(err) || err != nil && err.Error() == "bad connection" {
		return nil
	}
	return err
}
