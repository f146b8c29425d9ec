package mysql

import (
	"testing"
)

func TestWorkersKnowEachOther(t *testing.T) {
	s := newOpenStore(t, 1, nil)
	ctx := t.Context()
	for range 2 {
		for _, w := range [][2]string{{"a-" + t.Name(), "http://a"}, {"b-" + t.Name(), "http://b"}} {
			if err := s.Announce(ctx, w[0], w[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	mine := func() map[string]string {
		all, err := s.Workers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, w := range all {
			if w.Name == "a-"+t.Name() || w.Name == "b-"+t.Name() {
				out[w.URL] = w.Node
				if w.Beat.IsZero() {
					t.Errorf("%v: no beat", w)
				}
			}
		}
		return out
	}
	if got := mine(); len(got) != 2 || got["http://a"] == "" {
		t.Errorf("%v", got)
	}
	before, err := s.Workers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Announce(ctx, "a-"+t.Name(), "http://a"); err != nil {
		t.Fatal(err)
	}
	after, err := s.Workers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range before {
		for _, y := range after {
			if x.Name == y.Name && (x.Name == "a-"+t.Name()) == x.Beat.Equal(y.Beat) {
				t.Errorf("%s: beat %v, then %v", x.URL, x.Beat, y.Beat)
			}
		}
	}
	for range 2 {
		if err := s.Withdraw(ctx, "a-"+t.Name()); err != nil {
			t.Fatal(err)
		}
	}
	if got := mine(); len(got) != 1 || got["http://b"] == "" {
		t.Errorf("%v", got)
	}
}
