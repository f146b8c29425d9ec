package mysql

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog/internal/mysqltest"
)

// Of two copies under one key with different bodies both go over, each once: which
// of them loses is the drainer's matter.
func TestCarryTellsBodiesApart(t *testing.T) {
	node, master := mysqltest.Start(t), mysqltest.Start(t)
	st := newCopying(t, master, node)
	row := uuid.New()
	hold := func(n *mysqltest.Node, body string) {
		t.Helper()
		stored := mustBody(t, body)
		n.Exec(t, fmt.Sprintf("INSERT INTO cellog_buffer.buffered_cells (cluster, datastore, shard, row_key, column_name, ref_key, body, buffered_at) VALUES ('c0', '%s', 0, x'%x', 'BASE', 1, x'%x', NOW(6))", st.ds, row[:], stored))
		n.Exec(t, fmt.Sprintf("INSERT INTO cellog_buffer.rejected_cells (datastore, shard, row_key, column_name, ref_key, body, reason, rejected_at) VALUES ('%s', 0, x'%x', 'BASE', 1, x'%x', 'conflict', '2026-01-01')", st.ds, row[:], stored))
	}
	hold(master, `{"n":1}`)
	hold(node, `{"n":1}`)
	hold(node, `{"n":2}`)
	for _, want := range []int{1, 0} {
		copies, rejected, err := Carry(t.Context(), node.DB(t, ""), master.DB(t, ""))
		if err != nil || copies != want || rejected != want {
			t.Errorf("%d copies and %d rejected cells went over, want %d each: %v", copies, rejected, want, err)
		}
	}
	for _, table := range []string{"buffered_cells", "rejected_cells"} {
		if got := master.Query(t, "SELECT COUNT(DISTINCT body) FROM cellog_buffer."+table+" WHERE datastore = '"+st.ds+"'"); got != "2" {
			t.Errorf("%s: %s bodies", table, got)
		}
	}
}
