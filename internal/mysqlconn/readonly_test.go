package mysqlconn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqltest"
)

// The expression is a bool for each value that a server may give, also as the
// guard of a statement that changes something, in strict mode.
func TestReadOnlyIsNumberOrWord(t *testing.T) {
	n := mysqltest.Start(t)
	db := n.DB(t, "")
	n.Exec(t, "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO d.t VALUES (1, 0)")
	for value, want := range map[string]bool{
		"0": false, "1": true, "'OFF'": false, "'ON'": true, "'NO_LOCK'": true, "'NO_LOCK_NO_ADMIN'": true,
		"'0'": false, "'1'": true,
	} {
		expression := strings.ReplaceAll(mysqlconn.ReadOnly, "@@global.read_only", value)
		var got bool
		if err := db.QueryRow("SELECT " + expression).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", value, got, err, want)
		}
		res, err := db.Exec("UPDATE d.t SET n = n + 1 WHERE id = 1 AND NOT " + expression)
		if err != nil {
			t.Errorf("%s: %v", value, err)
			continue
		}
		if changed, err := res.RowsAffected(); err != nil || (changed == 0) != want {
			t.Errorf("%s as a guard: %d rows changed, %v", value, changed, err)
		}
	}
	for value, want := range map[string]bool{"ON": true, "OFF": false} {
		n.Exec(t, fmt.Sprintf("SET GLOBAL read_only = %s", value))
		var got bool
		if err := db.QueryRow("SELECT " + mysqlconn.ReadOnly).Scan(&got); err != nil || got != want {
			t.Errorf("the server's own %s: %v %v", value, got, err)
		}
	}
}
