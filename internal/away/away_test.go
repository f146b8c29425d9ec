package away

import (
	"testing"
	"time"
)

func TestMark(t *testing.T) {
	var m Mark
	now := time.Unix(1000, 0)
	if m.Is(now) {
		t.Error("one that was never silent is away")
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		want *= time.Second
		m.Silent(now)
		m.Silent(now.Add(want - 1)) // was on its way too
		if !m.Is(now.Add(want-1)) || m.Is(now.Add(want)) {
			t.Errorf("silence %d: not away for %v", i+1, want)
		}
		now = now.Add(want)
	}
	m.Silent(now)
	m.Answered()
	if m.Is(now) {
		t.Error("one that has answered is away")
	}
	m.Silent(now)
	if m.Is(now.Add(Min)) {
		t.Error("silences before an answer count")
	}
}
