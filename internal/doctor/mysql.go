package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/cellog/cellog/internal/mysqlconn"
)

// Node is a server to inspect.
type Node struct {
	Cluster, Name string
	// Addr is where it is reached.
	Addr string
	// DB is a pool with the admin's account.
	DB *sql.DB
	// MaxBody is the largest body that will be put, in bytes.
	MaxBody int64
}

// Server is what MySQL learned of a node; Cluster compares several.
type Server struct {
	Node    Node
	MariaDB bool
	Version string
	// Writable says that the server takes writes.
	Writable bool
	// Reached is false when the server did not answer.
	Reached bool
	// ID is its server_id, UUID MySQL's server_uuid; Source, SourceUUID and
	// SourceAddr are those of the server from which it replicates; empty where
	// there is none.
	ID, UUID                       string
	Source, SourceUUID, SourceAddr string
	// Machine names the running server, by whatever address it was reached.
	Machine string
}

// setting is a server variable that cellog relies on.
type setting struct {
	name string
	// old is the variable's name on servers that do not know the first one.
	old string
	// mariadb and mysql say on which flavour it counts.
	mariadb, mysql bool
	level          Level
	want           string
	ok             func(value string) bool
	why, fix       string
}

func is(values ...string) func(string) bool {
	return func(v string) bool {
		for _, w := range values {
			if strings.EqualFold(v, w) {
				return true
			}
		}
		return false
	}
}

func on(v string) bool { return is("ON", "1", "YES")(v) }

// settings are in the order in which they are printed.
var settings = []setting{
	{name: "log_bin", mariadb: true, mysql: true, level: Bad, want: "ON", ok: on,
		why: "without a binlog nothing reaches Kafka", fix: "[mysqld] log_bin=binlog, then restart"},
	{name: "binlog_format", mariadb: true, mysql: true, level: Bad, want: "ROW", ok: is("ROW"),
		why: "cells that are logged as statements cannot be read from the binlog", fix: "SET GLOBAL binlog_format=ROW, and [mysqld] binlog_format=ROW"},
	{name: "binlog_row_image", mariadb: true, mysql: true, level: Bad, want: "FULL", ok: is("FULL"),
		why: "rows without all their columns cannot be published", fix: "SET GLOBAL binlog_row_image=FULL, and [mysqld] binlog_row_image=FULL"},
	{name: "gtid_mode", mysql: true, level: Bad, want: "ON", ok: is("ON"),
		why: "the tailer cannot find its place on another server", fix: "[mysqld] gtid_mode=ON, enforce_gtid_consistency=ON, then restart"},
	{name: "enforce_gtid_consistency", mysql: true, level: Bad, want: "ON", ok: is("ON"),
		why: "gtid_mode needs it", fix: "[mysqld] enforce_gtid_consistency=ON, then restart"},
	{name: "gtid_strict_mode", mariadb: true, level: Bad, want: "ON", ok: on,
		why: "a server could take transactions that no other one has", fix: "SET GLOBAL gtid_strict_mode=ON, and [mysqld] gtid_strict_mode=ON"},
	{name: "sync_binlog", mariadb: true, mysql: true, level: Bad, want: "1", ok: is("1"),
		why: "an acknowledged cell may be missing from the binlog after a crash of the machine", fix: "SET GLOBAL sync_binlog=1, and [mysqld] sync_binlog=1"},
	{name: "master_verify_checksum", mariadb: true, level: Warn, want: "ON", ok: on,
		why: "a damaged binlog is sent to the tailer as if it were whole; only a cell's body has a checksum of its own", fix: "SET GLOBAL master_verify_checksum=ON, and [mysqld] master_verify_checksum=ON"},
	{name: "innodb_flush_log_at_trx_commit", mariadb: true, mysql: true, level: Bad, want: "1", ok: is("1"),
		why: "an acknowledged cell may be lost after a crash of the machine", fix: "SET GLOBAL innodb_flush_log_at_trx_commit=1, and [mysqld] innodb_flush_log_at_trx_commit=1"},
	{name: "innodb_doublewrite", mariadb: true, mysql: true, level: Bad, want: "ON", ok: func(v string) bool { return on(v) || strings.EqualFold(v, "DETECT_AND_RECOVER") },
		why: "a torn page after a crash cannot be mended", fix: "[mysqld] innodb_doublewrite=ON, then restart"},
	{name: "log_replica_updates", old: "log_slave_updates", mariadb: true, mysql: true, level: Bad, want: "ON", ok: on,
		why: "a minion cannot be tailed, nor become master", fix: "[mysqld] log_slave_updates=ON (log_replica_updates on MySQL), then restart"},
	{name: "replica_preserve_commit_order", old: "slave_preserve_commit_order", mysql: true, level: Warn, want: "ON", ok: on,
		why: "a minion shows shards at different times of the past; the order in a shard holds all the same", fix: "STOP REPLICA SQL_THREAD; SET GLOBAL replica_preserve_commit_order=ON; START REPLICA SQL_THREAD"},
	{name: "binlog_annotate_row_events", mariadb: true, level: Warn, want: "OFF", ok: is("OFF", "0"),
		why: "each statement's text is written too: nearly three times the binlog", fix: "SET GLOBAL binlog_annotate_row_events=OFF, and [mysqld] binlog_annotate_row_events=OFF"},
	{name: "character_set_server", mariadb: true, mysql: true, level: Warn, want: "utf8mb4", ok: is("utf8mb4"),
		why: "tables that others make may not hold all text", fix: "[mysqld] character_set_server=utf8mb4"},
}

// MySQL inspects one server.
func MySQL(ctx context.Context, n Node) ([]Finding, Server) {
	s := Server{Node: n}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var readOnly bool
	if err := n.DB.QueryRowContext(ctx, "SELECT VERSION(), "+mysqlconn.ReadOnly).Scan(&s.Version, &readOnly); err != nil {
		if mysqlconn.IsDenied(err) {
			return []Finding{denied(n.Name, "admin", err)}, s
		}
		return []Finding{{Where: n.Name, Check: "connection", Level: Bad, Found: noAnswer(ctx, err), Want: "an answer",
			Why: "nothing is known about this server", Fix: "start it, or correct clusters[].nodes[].addr"}}, s
	}
	s.Reached, s.Writable, s.MariaDB = true, !readOnly, strings.Contains(s.Version, "MariaDB")
	found := []Finding{n.version(s)}
	for _, set := range settings {
		if s.MariaDB && set.mariadb || !s.MariaDB && set.mysql {
			found = append(found, n.setting(ctx, set))
		}
	}
	found = append(found, n.packet(ctx))
	if f, ok := n.replication(ctx, &s); ok {
		found = append(found, f)
	}
	// What is not known is not compared.
	var host, port, dir string
	if err := n.DB.QueryRowContext(ctx, "SELECT @@global.server_id, @@hostname, @@port, @@datadir").Scan(&s.ID, &host, &port, &dir); err == nil {
		s.Machine = host + ":" + port + ":" + dir
	}
	if !s.MariaDB {
		_ = n.DB.QueryRowContext(ctx, "SELECT @@global.server_uuid").Scan(&s.UUID)
	}
	return append(found, n.belongs(ctx)...), s
}

// Name names the server for good, as Kafka and cellog_meta.terms have it.
func (s Server) Name() string {
	if s.MariaDB {
		return "mariadb-server-id-" + s.ID
	}
	return s.UUID
}

// belongs wants the server's data to be of the node's cluster. One that has none
// yet says nothing.
func (n Node) belongs(ctx context.Context) []Finding {
	f := Finding{Where: n.Name, Check: "its cluster", Level: OK, Want: n.Cluster}
	if err := n.DB.QueryRowContext(ctx, "SELECT name FROM cellog_meta.cluster WHERE id = 1").Scan(&f.Found); err != nil {
		return nil
	}
	if f.Found != n.Cluster {
		f.Level, f.Why = Bad, "it holds the shards of another cluster (cellog_meta.cluster)"
		f.Fix = "list it in clusters[].nodes of cluster " + f.Found + "; to give it to " + n.Cluster + ", drop cellog's databases there, then: cellog cluster rejoin " + n.Cluster + " " + n.Name
	}
	return []Finding{f}
}

// version wants MySQL 8.4 and MariaDB 10.6, the oldest that cellog knows.
func (n Node) version(s Server) Finding {
	f := Finding{Where: n.Name, Check: "version", Level: OK, Found: s.Version, Want: "MySQL 8.4 or newer, or MariaDB 10.6 or newer"}
	major, minor := parseVersion(s.Version)
	low := [2]int{8, 4}
	if s.MariaDB {
		low = [2]int{10, 6}
	}
	if major < low[0] || major == low[0] && minor < low[1] {
		f.Level, f.Why, f.Fix = Bad, "older servers were never tested, and their binlogs differ", "upgrade the server"
	}
	return f
}

func parseVersion(v string) (major, minor int) {
	parts := strings.SplitN(v, ".", 3)
	major, _ = strconv.Atoi(parts[0])
	if len(parts) > 1 {
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// variable reads a global variable; ok is false where there is none.
func (n Node) variable(ctx context.Context, name string) (value string, ok bool, err error) {
	var ignored string
	err = n.DB.QueryRowContext(ctx, "SHOW GLOBAL VARIABLES LIKE '"+strings.ReplaceAll(name, "_", `\_`)+"'").Scan(&ignored, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return value, err == nil, err
}

func (n Node) setting(ctx context.Context, s setting) Finding {
	f := Finding{Where: n.Name, Check: s.name, Level: OK, Want: s.want}
	v, ok, err := n.variable(ctx, s.name)
	if err == nil && !ok && s.old != "" {
		f.Check = s.old
		v, ok, err = n.variable(ctx, s.old)
	}
	f.Found = v
	switch {
	case err != nil:
		f.Level, f.Found, f.Why, f.Fix = Bad, err.Error(), "the setting could not be read", "let accounts.admin read server variables"
	case !ok:
		// A server that dropped the variable has only the one behaviour left.
		f.Found = "(no such variable)"
	case !s.ok(v):
		f.Level, f.Why, f.Fix = s.level, s.why, s.fix
	}
	return f
}

// packet wants room for the largest body and for a batch of them; 64 MiB is
// what MySQL comes with.
func (n Node) packet(ctx context.Context) Finding {
	want := max(64<<20, 2*n.MaxBody+1<<20)
	f := Finding{Where: n.Name, Check: "max_allowed_packet", Level: OK, Want: fmt.Sprintf("%d or more", want)}
	v, _, err := n.variable(ctx, "max_allowed_packet")
	if err != nil {
		f.Level, f.Found = Bad, err.Error()
		return f
	}
	f.Found = v
	if size, err := strconv.ParseInt(v, 10, 64); err != nil || size < want {
		f.Level = Bad
		f.Why, f.Fix = "large bodies and batches cannot be written or replicated", fmt.Sprintf("SET GLOBAL max_allowed_packet=%d, and the same under [mysqld]", int64(1)<<30)
	}
	return f
}

// replication wants both threads of a minion to run. ok is false for a server
// that is none: it takes writes, and replicates from nobody.
func (n Node) replication(ctx context.Context, s *Server) (f Finding, ok bool) {
	f = Finding{Where: n.Name, Check: "replication", Level: OK, Want: "running"}
	query, prefix := "SHOW REPLICA STATUS", "Replica"
	if s.MariaDB {
		query, prefix = "SHOW SLAVE STATUS", "Slave"
	}
	status, err := oneRow(ctx, n.DB, query)
	if err != nil {
		f.Level, f.Found, f.Why, f.Fix = Warn, err.Error(), "replication could not be looked at", "let accounts.admin run "+query
		return f, true
	}
	if status == nil {
		f.Level, f.Found = Bad, "not a replica"
		f.Why, f.Fix = "a read-only server that replicates from nobody holds old cells", "replicate from the cluster's master, with GTIDs"
		return f, !s.Writable
	}
	// A flavour has one of them.
	s.Source, s.SourceUUID = status["Source_Server_Id"]+status["Master_Server_Id"], status["Source_UUID"]
	s.SourceAddr = net.JoinHostPort(status["Source_Host"]+status["Master_Host"], status["Source_Port"]+status["Master_Port"])
	io, apply := status[prefix+"_IO_Running"], status[prefix+"_SQL_Running"]
	f.Found = "io " + io + ", sql " + apply
	if io != "Yes" || apply != "Yes" {
		f.Level, f.Why = Bad, "the minion falls behind: "+status["Last_IO_Error"]+status["Last_SQL_Error"]
		if status["Last_IO_Error"]+status["Last_SQL_Error"] == "" {
			f.Why = "the minion falls behind: somebody stopped it"
		}
		f.Fix = "mend the cause, then START REPLICA (START SLAVE on MariaDB)"
	}
	return f, true
}

// oneRow reads the first row by its columns' names; nil when there is none.
func oneRow(ctx context.Context, db *sql.DB, query string) (row map[string]string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		return nil, errors.Join(err, rows.Err())
	}
	values := make([]sql.NullString, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	if err := rows.Scan(into...); err != nil {
		return nil, err
	}
	row = map[string]string{}
	for i, n := range names {
		row[n] = values[i].String
	}
	return row, nil
}

// Worker tries whether the worker's account may change cells of a shard on its
// master. db is a pool with that account.
func Worker(ctx context.Context, where string, db *sql.DB, database string) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out []Finding
	for _, try := range []struct{ what, query string }{
		{"UPDATE", "UPDATE `" + database + "`.entity SET ref_key = ref_key WHERE added_id < 0"},
		{"DELETE", "DELETE FROM `" + database + "`.entity WHERE added_id < 0"},
	} {
		f := Finding{Where: where, Check: "the worker's " + try.what + " on entity", Level: OK, Found: "denied", Want: "denied"}
		_, err := db.ExecContext(ctx, try.query)
		switch {
		case err == nil:
			f.Level, f.Found = Bad, "allowed"
			f.Why = "cells are immutable: a tailer that sees one changed stops its shard"
			f.Fix = "REVOKE " + try.what + " ON `" + database + "`.* FROM the worker's account (grant SELECT, and INSERT on entity)"
		case !mysqlconn.IsDenied(err):
			f.Level, f.Found, f.Want = Warn, noAnswer(ctx, err), "denied"
			f.Why = "it could not be tried"
		}
		out = append(out, f)
	}
	return out
}
