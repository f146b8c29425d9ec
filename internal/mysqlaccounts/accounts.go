package mysqlaccounts

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"

	"github.com/cellog/cellog"
)

// Account is a user and its password.
type Account struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// Set is the accounts of one installation: the same on all its servers.
type Set struct {
	Admin   Account `json:"admin"`
	Worker  Account `json:"worker"`
	Tailer  Account `json:"tailer"`
	Indexer Account `json:"indexer"`
	Replica Account `json:"replica"`
}

// NewSet returns accounts of the usual names with random passwords.
func NewSet() Set {
	a := func(user string) Account { return Account{User: user, Password: rand.Text()} }
	return Set{
		Admin: a("cellog_admin"), Worker: a("cellog_worker"), Tailer: a("cellog_tailer"),
		Indexer: a("cellog_indexer"), Replica: a("cellog_replica"),
	}
}

// Create makes the accounts on a server, with the rights that do not depend on
// a datastore, and sets the passwords of those that are there. db is a session
// pool of an account that may grant everything.
func Create(ctx context.Context, db *sql.DB, set Set) error {
	var version string
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return fmt.Errorf("mysqlaccounts: version: %w", err)
	}
	for _, a := range ServerRights(set, strings.Contains(version, "MariaDB")) {
		who := a.who()
		for _, verb := range []string{"CREATE USER IF NOT EXISTS ", "ALTER USER "} {
			if _, err := db.ExecContext(ctx, verb+who+" IDENTIFIED BY "+quote(a.Account.Password)); err != nil {
				return fmt.Errorf("mysqlaccounts: %s%s: %w", verb, who, err)
			}
		}
		for _, g := range a.Rights {
			if err := exec(ctx, db, g.Grant(who)); err != nil {
				return err
			}
		}
	}
	return nil
}

// GrantDatastore gives the accounts their rights in the shards of a datastore
// that this server holds. The shards' databases must exist.
func GrantDatastore(ctx context.Context, db *sql.DB, set Set, datastore string, shards []cellog.ShardID) error {
	if err := cellog.CheckDatastore(datastore); err != nil {
		return fmt.Errorf("mysqlaccounts: %w", err)
	}
	for _, a := range ShardRights(set, datastore, shards) {
		for _, r := range a.Rights {
			if err := exec(ctx, db, r.Grant(a.who())); err != nil {
				return err
			}
		}
	}
	return nil
}

// exec runs a statement that holds no password.
func exec(ctx context.Context, db *sql.DB, q string) error {
	if _, err := db.ExecContext(ctx, q); err != nil {
		return fmt.Errorf("mysqlaccounts: %s: %w", q, err)
	}
	return nil
}

func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}
