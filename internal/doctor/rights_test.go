package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
)

// What a promotion, a rejoin or datastore create does is denied to an account
// that has all of AdminRights but one privilege, and that one is named.
func TestEachAdminRightIsNeeded(t *testing.T) {
	n := mysqltest.Start(t)
	n.CreateShards(t, "trips", 1)
	maria := mysqltest.Flavour() == mysqlserver.MariaDB
	need := map[string]string{
		"SELECT": "SELECT epoch FROM trips_0000.shard_log", "INSERT": "INSERT INTO cellog_meta.cluster (id, name) VALUES (2, 'x')",
		"UPDATE": "UPDATE trips_0000.shard_log SET term = 2", "DELETE": "DELETE FROM trips_0000.entity",
		"CREATE": "CREATE DATABASE trips_0001", "DROP": "DROP DATABASE trips_0000", "RELOAD": "FLUSH TABLES WITH READ LOCK",
		// These it gives the indexer.
		"ALTER": "GRANT ALTER ON `trips\\_%`.* TO 'cellog_indexer'@'%'", "INDEX": "GRANT INDEX ON `trips\\_%`.* TO 'cellog_indexer'@'%'",
	}
	if maria {
		for p, q := range map[string]string{"SLAVE MONITOR": "SHOW SLAVE STATUS", "REPLICATION SLAVE ADMIN": "STOP SLAVE",
			"BINLOG ADMIN": "SET sql_log_bin = 0", "READ_ONLY ADMIN": "SET GLOBAL read_only = ON", "CONNECTION ADMIN": "KILL %d"} {
			need[p] = q
		}
	} else {
		for p, q := range map[string]string{"REPLICATION CLIENT": "SHOW REPLICA STATUS", "REPLICATION_SLAVE_ADMIN": "STOP REPLICA", "SYSTEM_VARIABLES_ADMIN": "SET GLOBAL super_read_only = ON",
			"CONNECTION_ADMIN": "KILL %d", "SYSTEM_USER": "KILL %d"} {
			need[p] = q
		}
	}
	all := mysqlaccounts.AdminRights(maria)
	_, server := MySQL(t.Context(), Node{Cluster: "c1", Name: "n", DB: n.DB(t, "")})
	for i, p := range append(all.Privileges, "GRANT OPTION") {
		t.Run(p, func(t *testing.T) {
			a, less := mysqlaccounts.Account{User: fmt.Sprint("less", i), Password: "x"}, all
			less.Privileges = nil
			for _, x := range all.Privileges {
				if x != p {
					less.Privileges = append(less.Privileges, x)
				}
			}
			less.Grantable = p != "GRANT OPTION"
			who := "'" + a.User + "'@'%'"
			n.Exec(t, "CREATE USER "+who+" IDENTIFIED BY 'x'; "+less.Grant(who))
			db := n.As(t, a, "")
			f := Rights(t.Context(), server, "admin", db, []mysqlaccounts.Right{all})
			if f.Level != Bad || !strings.Contains(f.Found, p) || !strings.Contains(f.Fix, " TO "+who) || strings.Contains(f.Found, ",") {
				t.Errorf("%+v", f)
			}
			switch p {
			case "PROCESS": // without it a rebuild sees, and ends, its own sessions alone
				var id int
				if err := n.DB(t, "").QueryRow("SELECT CONNECTION_ID()").Scan(&id); err != nil {
					t.Fatal(err)
				}
				rows, err := db.Query("SHOW PROCESSLIST")
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				for rows.Next() {
					cols, _ := rows.Columns()
					vals := make([]any, len(cols))
					var user string
					for i := range vals {
						vals[i] = new(any)
					}
					vals[1] = &user
					if err := rows.Scan(vals...); err != nil || user != a.User {
						t.Errorf("it sees %s: %v", user, err)
					}
				}
			case "GRANT OPTION":
				if _, err := db.Exec("GRANT SELECT ON `trips\\_%`.* TO 'cellog_worker'@'%'"); !mysqlconn.IsDenied(err) {
					t.Errorf("it may grant: %v", err)
				}
			default:
				q := need[p]
				if strings.Contains(q, "%d") {
					var id int
					if err := n.DB(t, "").QueryRow("SELECT CONNECTION_ID()").Scan(&id); err != nil {
						t.Fatal(err)
					}
					q = fmt.Sprintf(q, id)
				}
				if _, err := db.Exec(q); err == nil {
					t.Errorf("%s does without: %s", p, q)
				} else if mysqlconn.Code(err) != 1095 && !mysqlconn.IsDenied(err) { // 1095: not the owner of the session
					t.Errorf("%s: %v", q, err)
				}
			}
			n.Exec(t, less.Grant(who)+"; "+all.Grant(who))
			if f := Rights(t.Context(), server, "admin", n.As(t, a, ""), []mysqlaccounts.Right{all}); f.Level != OK {
				t.Errorf("with all: %+v", f)
			}
		})
	}
}

func TestGrants(t *testing.T) {
	shards := mysqlaccounts.Right{Database: `trips\_%`, Table: "*"}
	head := mysqlaccounts.Right{Database: "trips_0003", Table: "shard_log"}
	for _, c := range []struct {
		line, privilege string
		on              mysqlaccounts.Right
		want            bool
	}{
		{"GRANT SELECT, INSERT ON `trips\\_%`.* TO `w`@`%`", "INSERT", shards, true},
		{"GRANT SELECT, INSERT ON `trips\\_%`.* TO `w`@`%`", "UPDATE", shards, false},
		{"GRANT SELECT ON `tripsX%`.* TO `w`@`%`", "SELECT", shards, false},
		{"GRANT SELECT ON `trips_%`.* TO `w`@`%`", "SELECT", shards, true},
		{"GRANT ALL PRIVILEGES ON *.* TO `w`@`%` IDENTIFIED BY PASSWORD '*00' WITH GRANT OPTION", "UPDATE", head, true},
		{"GRANT ALL PRIVILEGES ON *.* TO `w`@`%` WITH GRANT OPTION", "GRANT OPTION", head, true},
		{"GRANT ALL PRIVILEGES ON *.* TO `w`@`%`", "GRANT OPTION", head, false},
		{"GRANT UPDATE ON `trips_0003`.`shard_log` TO `w`@`%`", "UPDATE", head, true},
		{"GRANT UPDATE ON `trips_0004`.`shard_log` TO `w`@`%`", "UPDATE", head, false},
		{"GRANT UPDATE ON `trips_0003`.`entity` TO `w`@`%`", "UPDATE", head, false},
		{"GRANT SELECT, UPDATE (`epoch`, `term`) ON `trips_0003`.`shard_log` TO `w`@`%`", "UPDATE", head, false},
		{"GRANT UPDATE (`epoch`, `term`), SELECT ON `trips_0003`.`shard_log` TO `w`@`%`", "SELECT", head, true},
		{"GRANT USAGE ON *.* TO `w`@`%`", "SELECT", head, false},
		{"GRANT `role`@`%` TO `w`@`%`", "SELECT", head, false},
		{"GRANT PROXY ON ''@'%' TO 'root'@'localhost' WITH GRANT OPTION", "SELECT", head, false},
	} {
		g, ok := parseGrant(c.line)
		if got := ok && (grants{g}).allow(c.privilege, c.on); got != c.want {
			t.Errorf("%s: %s on %s: %t", c.line, c.privilege, c.on.On(), got)
		}
	}
}
