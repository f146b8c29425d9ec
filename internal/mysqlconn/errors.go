package mysqlconn

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// Code returns the server's error number, or 0 when err is no server's answer.
// The numbers are the same in MySQL and MariaDB unless a function here says
// otherwise.
func Code(err error) int {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return int(e.Number)
	}
	return 0
}

func is(err error, codes ...int) bool {
	c := Code(err)
	return c != 0 && slices.Contains(codes, c)
}

// IsDuplicate reports a value that a unique key holds already (1062). The
// statement undid itself, the transaction goes on.
func IsDuplicate(err error) bool { return is(err, 1062, 1586) }

// IsDeadlock reports that the server chose this transaction as a deadlock's
// victim and rolled all of it back (1213; MariaDB: also 1020, a row changed
// since it was read).
func IsDeadlock(err error) bool { return is(err, 1213, 1020) }

// IsLockTimeout reports a lock that was not had within innodb_lock_wait_timeout
// (1205) or that NOWAIT did not wait for (3572). Only the statement is undone.
func IsLockTimeout(err error) bool { return is(err, 1205, 3572) }

// IsReadOnly reports a write that a read-only server (1290, 1836) or
// transaction (1792) refused. See Config.KeepReadOnly.
func IsReadOnly(err error) bool { return is(err, 1290, 1792, 1836) }

// IsMissing reports an unknown database (1049) or table (1146).
func IsMissing(err error) bool { return is(err, 1049, 1146) }

// IsDenied reports that the account may not do that, or not log in (1044, 1045,
// 1142, 1143, 1227, 1370, 1698).
func IsDenied(err error) bool { return is(err, 1044, 1045, 1142, 1143, 1227, 1370, 1698) }

// IsTooLarge reports a packet above the server's max_allowed_packet (1153).
func IsTooLarge(err error) bool {
	return is(err, 1153, 1301) || errors.Is(err, mysql.ErrPktTooLarge)
}

// IsLost reports that there is no session, or none any more: nothing listens,
// the connection broke, the server shuts down, ended the session or has no room
// for one. What was sent last may have happened. A context that ended is not
// lost: ask the context.
func IsLost(err error) bool {
	if err == nil {
		return false
	}
	// 1040, 1203: too many connections. 1053: shutdown. 1152, 1158–1161: the
	// network broke. 1927 (MariaDB), 3169, 4031 (MySQL): session ended.
	if is(err, 1040, 1203, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 3169, 4031) {
		return true
	}
	var n *net.OpError
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.As(err, &n)
}
