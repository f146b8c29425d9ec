package app

import (
	"testing"
	"time"

	"github.com/cellog/cellog/cdc"
)

// However a server falls silent, the tailer is on another one, or known to be
// stuck, within half a minute. tests/tail meets each of these with real servers.
func TestStuckIsLeftInTime(t *testing.T) {
	const most = 30 * time.Second
	p := cdc.Patiences()
	// The look for another node asks the silent one last, and once in vain; then
	// the new one is checked.
	next := p.Close + p.Restart + askTimeout
	for _, c := range []struct {
		what string
		sum  time.Duration
	}{
		// The library ends its connection over another one, which is silent too.
		{"while its binlog is read", serverSilence + serverSilence + next},
		{"while cells are read from it", serverSilence + serverSilence + next},
		{"before it greets the reader of its binlog", serverSilence + next},
		{"after it said that it is a minion", p.Heads + next},
		{"because it replicates no more", p.Silent + next},
	} {
		t.Logf("%s: %s", c.what, c.sum)
		if c.sum >= most {
			t.Errorf("a server that falls silent %s is left after %s only", c.what, c.sum)
		}
	}
}
