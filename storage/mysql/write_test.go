package mysql

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

func TestWriteAndRead(t *testing.T) {
	st := newOpenStore(t, 1, nil)
	ctx := context.Background()
	k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}
	stored, errs := st.Write(ctx, st.ds, 0, []cellog.Put{{Key: k, Body: mustBody(t, `{"a":1}`)}})
	if errs[0] != nil || stored[0].Outcome != cellog.Created || stored[0].AddedID != 1 {
		t.Fatalf("first write: %+v, %v", stored, errs)
	}
	c, o, err := st.Newest(ctx, st.ds, k.Row, "BASE", cellog.Master)
	if err != nil || c.AddedID != 1 || !c.CreatedAt.Equal(stored[0].CreatedAt) {
		t.Fatalf("read: %+v %+v %v", c, o, err)
	}
	checkDense(t, st.db, st.ds, 0)
}
