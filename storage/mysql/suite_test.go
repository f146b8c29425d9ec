package mysql

import (
	"testing"

	"github.com/cellog/cellog/storage/storagetest"
)

func TestSuite(t *testing.T) {
	storagetest.Run(t, func(t *testing.T, columnLimit int) (storagetest.Store, string) {
		st := newOpenStore(t, 1, nil)
		var have int
		if err := st.db.QueryRow("SELECT COUNT(*) FROM cellog_meta.columns").Scan(&have); err != nil {
			t.Fatal(err)
		}
		// All tests share the server's one cluster.
		if _, err := st.db.Exec("UPDATE cellog_meta.cluster SET column_limit = ?", have+columnLimit); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := st.db.Exec("UPDATE cellog_meta.cluster SET column_limit = 1000"); err != nil {
				t.Error(err)
			}
		})
		return st, st.ds
	})
}
