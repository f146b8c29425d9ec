package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// Rights compares what one of the configuration's accounts may do on a server
// with what it needs there. role is its name under clusters[].accounts, db a pool
// with it.
func Rights(ctx context.Context, s Server, role string, db *sql.DB, need []mysqlaccounts.Right) Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f := Finding{Where: s.Node.Name, Check: "the rights of the " + role + "'s account", Level: OK}
	var who string
	err := db.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&who)
	if mysqlconn.IsDenied(err) {
		return denied(s.Node.Name, role, err)
	}
	var has grants
	if err == nil {
		has, err = grantsOf(ctx, db)
	}
	if err != nil {
		f.Level, f.Found, f.Why = Warn, noAnswer(ctx, err), "they could not be read"
		return f
	}
	has.super(s)
	f.Found, f.Want = who+" has what it needs", "what cellog uses"
	var lacks, mend []string
	user, host, _ := strings.Cut(who, "@")
	for _, r := range need {
		left := r
		left.Privileges = nil
		for _, p := range r.Privileges {
			if !has.allow(p, r) {
				left.Privileges = append(left.Privileges, p)
			}
		}
		left.Grantable = r.Grantable && !has.allow("GRANT OPTION", r)
		if left.Privileges == nil && left.Grantable {
			left.Privileges = []string{"USAGE"}
		}
		if left.Privileges == nil {
			continue
		}
		what := strings.Join(left.Privileges, ", ") + " on " + left.On()
		if left.Grantable {
			what += " with GRANT OPTION"
		}
		lacks, mend = append(lacks, what), append(mend, left.Grant("'"+user+"'@'"+host+"'"))
	}
	if lacks == nil {
		return f
	}
	f.Level, f.Found = Bad, who+" lacks "+some(lacks)
	f.Why, f.Fix = whatItDoes[role]+" will fail", "on the cluster's master: "+strings.Join(mend, "; ")
	if !s.Writable {
		f.Fix += " (it replicates; if the master has it, here, after SET sql_log_bin = 0)"
	}
	return f
}

// whatItDoes says what an account is for.
var whatItDoes = map[string]string{
	"admin": "promotion, rejoin and datastore create", "worker": "puts and reads", "tailer": "the tailer", "indexer": "the indexer",
	"replica": "minions that follow this node",
}

// some is a list, or the beginning of a long one.
func some(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:most], "; "), len(all)-most)
}

// denied is what was found of an account that is not let in. The server's error
// says no password.
func denied(where, role string, err error) Finding {
	return Finding{Where: where, Check: "the " + role + "'s account", Level: Bad, Found: err.Error(), Want: "to be let in",
		Why: "its password is wrong, or it does not exist", Fix: "correct clusters[].accounts." + role + ", or the account: CREATE USER, ALTER USER … IDENTIFIED BY"}
}

// grant is a line of SHOW GRANTS.
type grant struct {
	privileges map[string]bool
	database   *regexp.Regexp
	table      string
}

type grants []grant

var (
	grantLine = regexp.MustCompile("^GRANT (.+?) ON (?:TABLE )?(\\*|`(?:[^`]|``)+`)\\.(\\*|`(?:[^`]|``)+`) TO ")
	columns   = regexp.MustCompile(`[A-Z ]+\([^)]*\)`)
)

// grantsOf reads an account's own grants, with those of its active roles. The
// lines may hold the hash of its password.
func grantsOf(ctx context.Context, db *sql.DB) (out grants, err error) {
	rows, err := db.QueryContext(ctx, "SHOW GRANTS")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		if g, ok := parseGrant(line); ok {
			out = append(out, g)
		}
	}
	return out, rows.Err()
}

// parseGrant reads a line; roles, proxies and routines are none of ours.
func parseGrant(line string) (g grant, ok bool) {
	m := grantLine.FindStringSubmatch(line)
	if m == nil {
		return g, false
	}
	g.privileges = map[string]bool{}
	for _, p := range strings.Split(columns.ReplaceAllString(m[1], ""), ",") { // of a whole table, not of some columns
		g.privileges[strings.TrimSpace(p)] = true
	}
	if strings.HasSuffix(line, " WITH GRANT OPTION") {
		g.privileges["GRANT OPTION"] = true
	}
	g.table = strings.Trim(m[3], "`")
	g.database = like(strings.Trim(m[2], "`"), g.table != "*")
	return g, true
}

// like is the pattern of a database; exact for a table's.
func like(pattern string, exact bool) *regexp.Regexp {
	var sb strings.Builder
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case c == '\\' && i+1 < len(pattern):
			i++
			sb.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		case c == '*':
			sb.WriteString(".*")
		case c == '%' && !exact:
			sb.WriteString(".*")
		case c == '_' && !exact:
			sb.WriteString(".")
		default:
			sb.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	return regexp.MustCompile("^" + sb.String() + "$")
}

// allow says whether a privilege is given for all of a right's object. A pattern
// counts as the names of its own letters.
func (gs grants) allow(privilege string, on mysqlaccounts.Right) bool {
	database := strings.NewReplacer(`\_`, "_", "%", "0000").Replace(on.Database)
	for _, g := range gs {
		if !g.privileges[privilege] && (privilege == "GRANT OPTION" || !g.privileges["ALL PRIVILEGES"]) {
			continue
		}
		if g.database.MatchString(database) && (g.table == "*" || g.table == on.Table) {
			return true
		}
	}
	return false
}

// super adds what SUPER stands for. From MariaDB 11.0 on it is little.
func (gs grants) super(s Server) {
	major, minor := parseVersion(s.Version)
	for _, g := range gs {
		if !g.privileges["SUPER"] || s.MariaDB && major >= 11 {
			continue
		}
		for _, p := range []string{"BINLOG MONITOR", "SLAVE MONITOR", "REPLICATION SLAVE ADMIN", "BINLOG ADMIN", "CONNECTION ADMIN",
			"REPLICATION CLIENT", "REPLICATION_SLAVE_ADMIN", "SYSTEM_VARIABLES_ADMIN", "CONNECTION_ADMIN"} {
			g.privileges[p] = true
		}
		if major == 10 && minor < 11 {
			g.privileges["READ_ONLY ADMIN"] = true
		}
	}
}
