package table

import (
	"errors"
	"fmt"
	"testing"
)

// The copy of a shard's index tables replaces those that are there, of whatever
// shape, and in the state of another mover changes nothing.
func TestCopyShard(t *testing.T) {
	w := newWorld(t, 2, 2)
	from, to := w.admin[0], w.admin[1]
	ctx := t.Context()
	exec := func(on int, q string) {
		t.Helper()
		if _, err := w.admin[on].ExecContext(ctx, q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	rows := func(table string) (n int) {
		t.Helper()
		if err := to.QueryRowContext(ctx, "SELECT COUNT(*) FROM trips_0000."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec(1, "CREATE DATABASE trips_0000")
	exec(1, "CREATE TABLE trips_0000.shard_log LIKE trips_0001.shard_log")
	exec(1, "INSERT INTO trips_0000.shard_log SELECT * FROM trips_0001.shard_log")
	for i, shape := range []string{"id INT PRIMARY KEY, v VARCHAR(20)", "id INT PRIMARY KEY, v VARCHAR(20)"} {
		exec(i, "CREATE TABLE trips_0000.idx_same ("+shape+")")
	}
	exec(0, "CREATE TABLE trips_0000.idx_other (id INT PRIMARY KEY, v INT)")
	exec(1, "CREATE TABLE trips_0000.idx_other (id INT PRIMARY KEY, w INT)")
	exec(0, "CREATE TABLE trips_0000.idx_new (id INT PRIMARY KEY)")
	exec(1, "CREATE TABLE trips_0000.idx_gone (id INT PRIMARY KEY)")
	for i := range 3 {
		exec(0, fmt.Sprintf("INSERT INTO trips_0000.idx_same VALUES (%d, 'x')", i))
		exec(0, fmt.Sprintf("INSERT INTO trips_0000.idx_new VALUES (%d)", i))
		exec(1, fmt.Sprintf("INSERT INTO trips_0000.idx_same VALUES (%d, 'old')", i+1))
		exec(1, fmt.Sprintf("INSERT INTO trips_0000.idx_other VALUES (%d, 1)", i))
	}
	exec(0, "INSERT INTO trips_0000.idx_other VALUES (1, 1)")
	c := Copy{From: from, To: to, Datastore: "trips", Shard: 0, State: "copying a"}
	for _, state := range []string{"copying b", "arriving a", "open"} {
		exec(1, "UPDATE trips_0000.shard_log SET state = '"+state+"' WHERE id = 1")
		if _, err := CopyShard(ctx, c); !errors.Is(err, ErrNotCopying) {
			t.Errorf("%s: %v", state, err)
		}
		if rows("idx_same") != 3 || rows("idx_other") != 3 || rows("idx_gone") != 0 {
			t.Fatalf("%s: the tables were changed", state)
		}
	}
	exec(1, "UPDATE trips_0000.shard_log SET state = 'copying a' WHERE id = 1")
	for range 2 {
		if n, err := CopyShard(ctx, c); err != nil || n != 7 {
			t.Fatalf("%d rows, %v", n, err)
		}
		names, err := OfShard(ctx, to, "trips", 0)
		if err != nil || fmt.Sprint(names) != "[idx_new idx_other idx_same]" || rows("idx_same") != 3 || rows("idx_other") != 1 || rows("idx_new") != 3 {
			t.Errorf("%v %v", names, err)
		}
		var old int
		if err := to.QueryRowContext(ctx, "SELECT COUNT(*) FROM trips_0000.idx_same WHERE v = 'old'").Scan(&old); err != nil || old != 0 {
			t.Errorf("%d old rows, %v", old, err)
		}
	}
}
