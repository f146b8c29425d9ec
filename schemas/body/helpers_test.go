package body

import "strings"

// fataler is a testing.TB or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func mustEncode(t fataler, json []byte) []byte {
	t.Helper()
	stored, err := Encode(nil, json, Limits{})
	if err != nil {
		t.Fatalf("Encode(%.200s): %v", json, err)
	}
	return stored
}

func join(begin string, items []string, end string) string {
	return begin + strings.Join(items, ",") + end
}
