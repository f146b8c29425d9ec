package app

import (
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/config"
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

// Where nothing answers, that is said, of the servers and of Kafka both.
func TestTailStatusWhereNothingAnswers(t *testing.T) {
	cfg := config.Default()
	cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
	cfg.Clusters = []config.Cluster{{Name: "c1", Accounts: config.Accounts{Admin: config.Account{User: "a"}}, Nodes: []config.Node{{Name: "c1a", Addr: "127.0.0.1:1"}}}}
	all, err := TailStatuses(t.Context(), &cfg, Env{}, nil)
	if err != nil || len(all) != 1 || all[0].State != TailUnknown || all[0].Flows() {
		t.Fatalf("%+v, %v", all, err)
	}
	said := strings.Join(all[0].Problems, "\n")
	for _, want := range []string{"c1a", "Kafka's positions"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in:\n%s", want, said)
		}
	}
	if _, err := TailStatuses(t.Context(), &cfg, Env{}, []string{"c2"}); err == nil || !strings.Contains(err.Error(), `"c2"`) {
		t.Errorf("an unknown cluster: %v", err)
	}
	if _, _, err := SetPause(t.Context(), &cfg, "c1", cdc.Pause{Paused: true, By: "ada"}); err == nil || !strings.Contains(err.Error(), "0 nodes that take writes") {
		t.Errorf("a pause that nobody can keep: %v", err)
	}
}

func TestPauseTextLimits(t *testing.T) {
	if err := CheckPauseText("reason", strings.Repeat("é", MaxPauseReason), MaxPauseReason); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{strings.Repeat("x", MaxPauseReason+1), "two\nlines", "\xff"} {
		if err := CheckPauseText("reason", bad, MaxPauseReason); err == nil || !strings.Contains(err.Error(), "--reason: want one line of at most 400 characters") {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}
