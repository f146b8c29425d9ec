package body

import (
	"strings"
	"syscall"
	"testing"
)

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

// reportCPU reports the processor's time per operation, which other work on the
// machine changes less than the clock's, from its call to that of its result.
func reportCPU(b *testing.B) func() {
	spent := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := spent()
	return func() { b.ReportMetric(float64(spent()-before)/float64(b.N), "cpu-ns/op") }
}
