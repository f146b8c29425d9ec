package mysqlconn_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func TestErrorsOfARealServer(t *testing.T) {
	n := mysqltest.Start(t)
	n.Exec(t, "CREATE DATABASE d; CREATE TABLE d.t (id INT PRIMARY KEY, at DATETIME(6)); INSERT INTO d.t VALUES (1, '2026-01-02 03:04:05.678901')")
	db := n.DB(t, "d")
	worker := n.As(t, mysqltest.Accounts.Worker, "")
	wrong := mysqltest.Accounts.Worker
	wrong.Password = "no"

	var at time.Time
	if err := db.QueryRow("SELECT at FROM t WHERE id = ?", 1).Scan(&at); err != nil || !at.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)) {
		t.Errorf("time %v, %v", at, err)
	}
	exec := func(q string) error { _, err := db.Exec(q); return err }
	_, denied := worker.Exec("INSERT INTO d.t VALUES (2, NULL)")
	for name, c := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"duplicate": {exec("INSERT INTO t VALUES (1, NULL)"), mysqlconn.IsDuplicate},
		"table":     {exec("SELECT * FROM d.nothing"), mysqlconn.IsMissing},
		"database":  {exec("SELECT * FROM nothing.t"), mysqlconn.IsMissing},
		"denied":    {denied, mysqlconn.IsDenied},
		"password":  {n.As(t, wrong, "").Ping(), mysqlconn.IsDenied},
		"read-only": {exec("SET SESSION TRANSACTION READ ONLY; INSERT INTO t VALUES (3, NULL)"), mysqlconn.IsReadOnly},
	} {
		if !c.is(c.err) || mysqlconn.IsLost(c.err) {
			t.Errorf("%s: %v (code %d, lost %v)", name, c.err, mysqlconn.Code(c.err), mysqlconn.IsLost(c.err))
		}
	}

	ctx := context.Background()
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	n.Kill()
	if _, err := conn.ExecContext(ctx, "DO 1"); !mysqlconn.IsLost(err) {
		t.Errorf("a killed server: %v", err)
	}
	if err := db.Ping(); !mysqlconn.IsLost(err) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestOpenNamesTheFieldThatIsWrong(t *testing.T) {
	for want, cfg := range map[string]mysqlconn.Config{
		"addr":     {User: "u"},
		"host":     {User: "u", Addr: "localhost"},
		"user":     {Addr: "127.0.0.1:1"},
		"max_open": {Addr: "127.0.0.1:1", User: "u", MaxOpen: -1},
	} {
		if _, err := mysqlconn.Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
