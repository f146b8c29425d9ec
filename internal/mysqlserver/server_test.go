package mysqlserver

import (
	"context"
	"errors"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "parent" {
		os.Exit(parentProcess(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// flavour is the one that CELLOG_TEST_FLAVOUR asks for.
func flavour() Flavour {
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		return Flavour(f)
	}
	return MariaDB
}

func newServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Flavour = flavour()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.ServerID == 0 {
		cfg.ServerID = 1
	}
	s, err := Start(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func query(t *testing.T, s *Server, q string) string {
	t.Helper()
	db, err := s.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var v string
	if err := db.QueryRow(q).Scan(&v); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return v
}

func execute(t *testing.T, s *Server, q string) {
	t.Helper()
	db, err := s.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(q); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func TestStartIsReadOnlyDurableAndGTID(t *testing.T) {
	s := newServer(t, Config{})
	want := map[string]string{
		"read_only": "1", "log_bin": "1", "sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1",
		"binlog_format": "ROW", "binlog_row_image": "FULL", "max_allowed_packet": "1073741824", "performance_schema": "0",
	}
	switch s.Flavour() {
	case MariaDB:
		want["gtid_strict_mode"], want["binlog_annotate_row_events"], want["log_slave_updates"] = "1", "0", "1"
	case MySQL:
		want["gtid_mode"], want["enforce_gtid_consistency"], want["log_replica_updates"] = "ON", "ON", "1"
		want["super_read_only"], want["replica_preserve_commit_order"] = "1", "1"
	}
	for name, v := range want {
		if got := query(t, s, "SELECT @@global."+name); got != v {
			t.Errorf("%s = %s, want %s", name, got, v)
		}
	}
	if n := query(t, s, "SELECT COUNT(*) FROM mysql.user WHERE User = '' OR (User = 'root' AND Host <> 'localhost')"); n != "0" {
		t.Errorf("%s accounts of root or of nobody for other hosts than localhost", n)
	}
}

func TestDataSurvivesKillAndRestartOnTheSamePort(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, Config{Dir: dir})
	execute(t, s, "SET GLOBAL read_only=OFF; CREATE DATABASE a; CREATE TABLE a.t (id INT PRIMARY KEY); INSERT INTO a.t VALUES (7)")
	port := s.Port()
	s.Kill()
	if err := s.Err(); err != nil {
		t.Errorf("after Kill: %v", err)
	}
	s = newServer(t, Config{Dir: dir, Port: port})
	if got := query(t, s, "SELECT id FROM a.t"); got != "7" {
		t.Errorf("got %s", got)
	}
	if got := query(t, s, "SELECT @@read_only"); got != "1" {
		t.Error("a restarted server is not read-only")
	}
	for range 2 { // twice is fine
		if err := s.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASecondStartInTheSameDirectoryIsRefused(t *testing.T) {
	s := newServer(t, Config{})
	_, err := Start(context.Background(), Config{Dir: s.Dir(), ServerID: 2, Flavour: flavour()})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v, want ErrInUse", err)
	}
	t.Log(err)
}

func TestATakenPortIsRefused(t *testing.T) {
	s := newServer(t, Config{})
	_, err := Start(context.Background(), Config{Dir: t.TempDir(), Port: s.Port(), ServerID: 2, Flavour: flavour()})
	if !errors.Is(err, ErrPortTaken) {
		t.Fatalf("got %v, want ErrPortTaken", err)
	}
}

func TestAServerThatDoesNotComeUpShowsItsLog(t *testing.T) {
	_, err := Start(context.Background(), Config{Dir: t.TempDir(), ServerID: 2, Flavour: flavour(), Options: []string{"--no-such-option=1"}})
	if err == nil {
		t.Fatal("started")
	}
	t.Log(err)
}
