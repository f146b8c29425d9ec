package mysqlaccounts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cellog/cellog"
)

// ErrNoAccount is returned by Lacking for an account that the server does not
// have.
var ErrNoAccount = errors.New("there is no such account on this server")

// object is what a right is on, for an account of one host.
type object struct{ host, database, table string }

// Lacking returns the statements that give the working accounts their rights in
// the databases of cellog and in the shards that a server holds, so far as it
// does not have them itself; they hold no password. An account without a user is
// left out. One that the server does not have is an ErrNoAccount, beside the
// statements for the others: who made the accounts knows their passwords and from
// where they may log in.
//
// It costs three look-ups an account, whatever the number of shards.
func Lacking(ctx context.Context, db *sql.DB, set Set, shards map[string][]cellog.ShardID) (statements []string, err error) {
	need := map[Account][]Right{}
	for _, r := range ServerRights(set, false) {
		for _, right := range r.Rights {
			if right.Database != "*" { // the global ones are not shards' business
				need[r.Account] = append(need[r.Account], right)
			}
		}
	}
	for datastore, of := range shards {
		if err := cellog.CheckDatastore(datastore); err != nil {
			return nil, fmt.Errorf("mysqlaccounts: %w", err)
		}
		for _, r := range ShardRights(set, datastore, of) {
			need[r.Account] = append(need[r.Account], r.Rights...)
		}
	}
	var missing []error
	for a, rights := range need {
		if a.User == "" {
			continue
		}
		hosts, err := hostsOf(ctx, db, a.User)
		if err != nil {
			return nil, err
		}
		if len(hosts) == 0 {
			missing = append(missing, fmt.Errorf("mysqlaccounts: %s: %w: make it as it is on the others (CREATE USER, after SET sql_log_bin = 0)", a.User, ErrNoAccount))
			continue
		}
		has, err := rightsOf(ctx, db, a.User)
		if err != nil {
			return nil, err
		}
		for _, host := range hosts {
			for _, r := range rights {
				if !has.all(host, r) {
					statements = append(statements, r.Grant(quote(a.User)+"@"+quote(host)))
				}
			}
		}
	}
	slices.Sort(statements)
	return statements, errors.Join(missing...)
}

// hostsOf are those from which an account may log in. A role of MariaDB's has
// none.
func hostsOf(ctx context.Context, db *sql.DB, user string) (hosts []string, err error) {
	err = each(ctx, db, "SELECT Host, '', '', '' FROM mysql.user WHERE User = ? AND Host <> ''", user, func(o object, _ string) { hosts = append(hosts, o.host) })
	return hosts, err
}

// held are an account's own rights: privileges, in capitals.
type held map[object][]string

// all says whether an account of a host has a right in these very words.
func (h held) all(host string, r Right) bool {
	has := h[object{host, r.Database, r.Table}]
	return !slices.ContainsFunc(r.Privileges, func(p string) bool { return !slices.Contains(has, p) })
}

// rightsOf reads what an account has in databases and tables.
func rightsOf(ctx context.Context, db *sql.DB, user string) (held, error) {
	out := held{}
	add := func(o object, privileges string) {
		out[o] = append(out[o], strings.Split(strings.ToUpper(privileges), ",")...)
	}
	var parts []string
	for _, p := range []string{"Select", "Insert", "Update", "Delete", "Create", "Drop", "Alter", "Index"} {
		parts = append(parts, fmt.Sprintf("IF(%[1]s_priv = 'Y', '%[1]s', NULL)", p))
	}
	if err := each(ctx, db, "SELECT Host, Db, '*', CONCAT_WS(',', "+strings.Join(parts, ", ")+") FROM mysql.db WHERE User = ?", user, add); err != nil {
		return nil, err
	}
	return out, each(ctx, db, "SELECT Host, Db, Table_name, Table_priv FROM mysql.tables_priv WHERE User = ?", user, add)
}

func each(ctx context.Context, db *sql.DB, query, user string, f func(o object, privileges string)) error {
	fail := func(err error) error { return fmt.Errorf("mysqlaccounts: look for the rights of %s: %w", user, err) }
	rows, err := db.QueryContext(ctx, query, user)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	for rows.Next() {
		var o object
		var privileges string
		if err := rows.Scan(&o.host, &o.database, &o.table, &privileges); err != nil {
			return fail(err)
		}
		f(o, privileges)
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return nil
}
