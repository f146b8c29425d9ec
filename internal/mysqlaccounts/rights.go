package mysqlaccounts

import (
	"strings"

	"github.com/cellog/cellog"
)

// Right is what one GRANT gives.
type Right struct {
	// Privileges are as the flavour's SHOW GRANTS spells them.
	Privileges []string
	// Database may be a pattern, as in GRANT; * is every one. Table may be *.
	Database, Table string
	// Grantable says that the account may pass them on.
	Grantable bool
}

// Rights are an account's.
type Rights struct {
	Account Account
	Rights  []Right
}

// On is the right's object as GRANT writes it.
func (r Right) On() string { return ident(r.Database) + "." + ident(r.Table) }

// Grant is the statement that gives the right. who is an account in quotes, with
// its host.
func (r Right) Grant(who string) string {
	q := "GRANT " + strings.Join(r.Privileges, ", ") + " ON " + r.On() + " TO " + who
	if r.Grantable {
		q += " WITH GRANT OPTION"
	}
	return q
}

// who is the account for every host: what may connect is the network's and
// bind-address's business.
func (r Rights) who() string { return quote(r.Account.User) + "@'%'" }

func ident(s string) string {
	if s == "*" {
		return s
	}
	return "`" + s + "`"
}

// ServerRights are the rights that do not depend on a datastore.
func ServerRights(set Set, mariaDB bool) []Rights {
	monitor := []string{"REPLICATION SLAVE", "REPLICATION CLIENT"}
	if mariaDB {
		monitor = []string{"REPLICATION SLAVE", "BINLOG MONITOR", "SLAVE MONITOR"}
	}
	all := []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
	global := func(p ...string) Right { return Right{Privileges: p, Database: "*", Table: "*"} }
	in := func(database string, p ...string) Right { return Right{Privileges: p, Database: database, Table: "*"} }
	return []Rights{
		{set.Admin, []Right{{Privileges: []string{"ALL PRIVILEGES"}, Database: "*", Table: "*", Grantable: true}}},
		{set.Worker, []Right{in("cellog_meta", all...), in("cellog_buffer", all...)}},
		{set.Tailer, []Right{global(monitor...), in("cellog_meta", "SELECT", "INSERT", "UPDATE"), in("cellog_buffer", "SELECT")}},
		{set.Indexer, []Right{in("cellog_meta", all...)}},
		{set.Replica, []Right{global("REPLICATION SLAVE")}},
	}
}

// ShardRights are the rights in a datastore's shards that a server holds.
func ShardRights(set Set, datastore string, shards []cellog.ShardID) []Rights {
	in := func(p ...string) Right {
		return Right{Privileges: p, Database: datastore + `\_%`, Table: "*"}
	}
	worker := []Right{in("SELECT", "INSERT")}
	for _, s := range shards {
		worker = append(worker, Right{Privileges: []string{"UPDATE"}, Database: cellog.DatabaseName(datastore, s), Table: "shard_log"})
	}
	return []Rights{
		{set.Worker, worker},
		{set.Tailer, []Right{in("SELECT")}},
		{set.Indexer, []Right{in("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX")}},
	}
}

// AdminRights is the least that the admin's account needs on every server: what
// datastore create, promotion, rejoin, repair and the doctor use. Create gives it
// all privileges.
func AdminRights(mariaDB bool) Right {
	p := []string{"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "INDEX", "RELOAD", "PROCESS"}
	if mariaDB {
		// To see and change replication, to leave the binlog out, to set read_only and
		// end sessions.
		p = append(p, "SLAVE MONITOR", "REPLICATION SLAVE ADMIN", "BINLOG ADMIN", "CONNECTION ADMIN", "READ_ONLY ADMIN")
	} else {
		p = append(p, "REPLICATION CLIENT", "REPLICATION_SLAVE_ADMIN", "SYSTEM_VARIABLES_ADMIN", "CONNECTION_ADMIN", "SYSTEM_USER") // the last to end root's sessions
	}
	return Right{Privileges: p, Database: "*", Table: "*", Grantable: true}
}
