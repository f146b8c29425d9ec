package cellog

import (
	"testing"

	"github.com/google/uuid"
)

func TestToken(t *testing.T) {
	want := Token{Key: Key{Row: uuid.New(), Column: "BASE", Ref: -3}, Datastore: "trips", Shard: 7, Epoch: 2, AddedID: 41}
	got, err := ParseToken(want.String())
	if err != nil || got != want {
		t.Errorf("ParseToken(%s) = %+v, %v; want %+v", want, got, err, want)
	}
	for _, s := range []string{"", "x", "!!", want.String() + "A", want.String()[:20]} {
		if _, err := ParseToken(s); err == nil {
			t.Errorf("ParseToken(%q) passed", s)
		}
	}
}

func TestReadFrom(t *testing.T) {
	for _, r := range []ReadFrom{Master, Minion} {
		if got, err := ParseReadFrom(r.String()); err != nil || got != r {
			t.Errorf("ParseReadFrom(%s) = %v, %v", r, got, err)
		}
	}
	if _, err := ParseReadFrom("slave"); err == nil {
		t.Error("slave accepted")
	}
}
