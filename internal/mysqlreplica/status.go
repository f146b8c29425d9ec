package mysqlreplica

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// State is how a server follows another one.
type State struct {
	// Configured is false on a server that follows none; the rest is empty
	// then.
	Configured bool
	// Source is host:port of the server that is followed.
	Source string
	// Receiving says that the source is connected and its transactions are
	// fetched; Applying that those fetched are applied.
	Receiving, Applying bool
	// Received and Applied are transactions in the flavour's GTID text.
	// Received are those that were fetched whole (MySQL: since the relay log
	// began; MariaDB: the last one), Applied all that the server has.
	Received, Applied string
	// Lag is what the server says about how far it is behind, if LagKnown.
	Lag      time.Duration
	LagKnown bool
	// ReceiveError and ApplyError are the threads' last errors, with the
	// server's numbers; empty when there is none.
	ReceiveError, ApplyError string

	// A thread that is not running and not about to connect again.
	receiverGone bool
	// The numbers of the errors.
	receiveCode, applyCode int
}

// Status asks a server how it follows another one.
func Status(ctx context.Context, db *sql.DB) (State, error) {
	s, err := Identity(ctx, db)
	if err != nil {
		return State{}, err
	}
	q, source, replica := "SHOW REPLICA STATUS", "Source", "Replica"
	if s.MariaDB {
		q, source, replica = "SHOW SLAVE STATUS", "Master", "Slave"
	}
	row, err := oneRow(ctx, db, q)
	if err != nil || row == nil {
		return State{}, err
	}
	st := State{
		Configured:   true,
		Source:       net.JoinHostPort(row[source+"_Host"], row[source+"_Port"]),
		Receiving:    row[replica+"_IO_Running"] == "Yes",
		Applying:     row[replica+"_SQL_Running"] == "Yes",
		ReceiveError: numbered(row, "Last_IO_Err"),
		ApplyError:   numbered(row, "Last_SQL_Err"),
		receiverGone: row[replica+"_IO_Running"] == "No",
	}
	st.receiveCode, _ = strconv.Atoi(row["Last_IO_Errno"])
	st.applyCode, _ = strconv.Atoi(row["Last_SQL_Errno"])
	if n, err := strconv.Atoi(row["Seconds_Behind_"+source]); err == nil {
		st.Lag, st.LagKnown = time.Duration(n)*time.Second, true
	}
	if s.MariaDB {
		st.Received = row["Gtid_IO_Pos"]
	} else {
		st.Received = strings.ReplaceAll(row["Retrieved_Gtid_Set"], "\n", "")
	}
	st.Applied, err = GTIDs(ctx, db)
	return st, err
}

// Follows says that the server applies what it gets, and gets it, or goes on
// trying to. One whose threads were stopped does not, with an error or without.
func (s State) Follows() bool {
	return s.Configured && s.Applying && (s.Receiving || !s.receiverGone)
}

// Diverged says that a thread's error proves that the server differs from its
// source, or that the source has no more what it lacks.
func (s State) Diverged() bool {
	switch s.applyCode {
	case 1062, 1032, // a row is there already, or is not
		1950: // MariaDB: out of the order of GTIDs
		return true
	}
	switch s.receiveCode {
	case 1236, 13114, // the source cannot go on from there; MySQL's own number for it
		1945, 1955: // MariaDB: that place is not in its binlog
		// Neither says anything about what the servers have.
		return !strings.Contains(s.ReceiveError, "max_allowed_packet") && !strings.Contains(s.ReceiveError, "same server_")
	}
	return false
}

// stopped is the error of a thread that gave up.
func (s State) stopped() error {
	if s.Diverged() {
		return fmt.Errorf("%w: %w: %+v", ErrStopped, ErrDiverged, s)
	}
	return fmt.Errorf("%w: %+v", ErrStopped, s)
}

func numbered(row map[string]string, prefix string) string {
	msg := row[prefix+"or"] // Last_IO_Error, and its Last_IO_Errno
	if msg == "" {
		return ""
	}
	return "error " + row[prefix+"no"] + ": " + msg
}

// querier is a pool or one session of it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// oneRow returns the first row by column name, nil when there is none.
func oneRow(ctx context.Context, db querier, q string) (map[string]string, error) {
	all, err := allRows(ctx, db, q)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// allRows returns the rows by column name; NULL is the empty string.
func allRows(ctx context.Context, db querier, q string) (all []map[string]string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("mysqlreplica: %s: %w", q, err)
		}
	}()
	rows, err := db.QueryContext(ctx, q)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	vals, ptrs := make([]sql.RawBytes, len(names)), make([]any, len(names))
	for i := range vals {
		ptrs[i] = &vals[i]
	}
	for rows.Next() {
		if err := rows.Scan(ptrs...); err != nil {
			return nil, err
		}
		row := make(map[string]string, len(names))
		for i, n := range names {
			row[n] = string(vals[i])
		}
		all = append(all, row)
	}
	return all, rows.Err()
}
