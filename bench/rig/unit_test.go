package rig

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"
)

// The rig itself works, without Debezium, on whatever servers tests run on.
func TestRigRuns(t *testing.T) {
	o, err := readOptions(func(name string) string {
		return map[string]string{"CELLOG_RIG_CELLS": "2000", "CELLOG_RIG_TX": "8", "CELLOG_RIG": "read,inflate,cellog-json", "CELLOG_RIG_SECONDS": "1", "CELLOG_RIG_OUT": t.TempDir()}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{o: o, told: map[string]bool{}}
	if r.subjects, err = choose(o); err != nil {
		t.Fatal(err)
	}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	measure(r, t, map[string]string{})
	text := r.tables()
	if kept, err := readRaw([]string{r.raw.Name()}); err != nil || kept.tables() != text {
		t.Errorf("the raw results give other tables: %v", err)
	}
	for _, s := range r.subjects {
		if !strings.Contains(text, "| "+s.name+" | ") {
			t.Errorf("no line of %s", s.name)
		}
		rs := r.of("backlog", s.name, 8, "")
		if len(rs) != 1 || rs[0].Cells != 2000 || rs[0].Rate <= 0 || rs[0].PeakMiB <= 0 {
			t.Errorf("%s: %+v", s.name, rs)
		}
	}
	for _, step := range steps {
		if rs := r.of("latency", "cellog-json", 0, step.name); len(rs) != 1 || rs[0].Cells == 0 || rs[0].P99 < rs[0].P50 {
			t.Errorf("at %s: %+v", step.name, rs)
		}
	}
	t.Log(text)
}

func TestOptions(t *testing.T) {
	for name, bad := range map[string]string{
		"CELLOG_RIG_CELLS": "many", "CELLOG_RIG_RUNS": "0", "CELLOG_RIG_TX": "8,0", "CELLOG_RIG_SECONDS": "-1", "CELLOG_RIG_OUT": "/no/such/folder",
	} {
		_, err := readOptions(func(n string) string {
			if n == name {
				return bad
			}
			return ""
		})
		if err == nil || name != "CELLOG_RIG_OUT" && !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, bad, err)
		}
	}
	o, err := readOptions(func(n string) string { return map[string]string{"CELLOG_RIG": "read,debezium"}[n] })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := choose(o); err == nil || !strings.Contains(err.Error(), "debezium-tuned") {
		t.Errorf("an unknown subject: %v, want the list of those there are", err)
	}
	o.subjects, o.values = []string{"all"}, []string{"json", "parchment"}
	all, err := choose(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.value == "parchment" {
			t.Error("a value that the configuration does not know is measured")
		}
	}
}

// A control batch is no record, a batch that is cut comes again, and one below
// the offset was counted before.
func TestBatches(t *testing.T) {
	batch := func(base int64, last, records uint32, attributes uint16) []byte {
		b := make([]byte, 61+10)
		binary.BigEndian.PutUint64(b, uint64(base))
		binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
		b[16] = 2
		binary.BigEndian.PutUint16(b[21:], attributes)
		binary.BigEndian.PutUint32(b[23:], last)
		binary.BigEndian.PutUint32(b[57:], records)
		return b
	}
	const lz4, transactional, control = 3, 0x10, 0x20
	all := append(batch(0, 4, 5, lz4|transactional), batch(5, 0, 1, transactional|control)...)
	all = append(all, batch(6, 1, 2, lz4|transactional)...)
	for _, c := range []struct {
		b                   []byte
		from, records, next int64
	}{
		{all, 0, 7, 8}, {all, 5, 2, 8}, {all, 6, 2, 8}, {all[:len(all)-1], 0, 5, 6}, {all[:30], 0, 0, 0}, {nil, 9, 0, 9},
	} {
		records, size, next, err := batches(c.b, c.from)
		if err != nil || records != c.records || next != c.next || (size > 0) != (records > 0) {
			t.Errorf("from %d: %d records of %d bytes, next %d, %v; want %d, %d", c.from, records, size, next, err, c.records, c.next)
		}
	}
	all[16] = 1
	if _, _, _, err := batches(all, 0); err == nil {
		t.Error("an old batch was counted")
	}
}

func TestFigures(t *testing.T) {
	// Nothing for 2 s, then 100 cells/s at 10 ms of CPU a cell, and twice as fast from the middle on.
	s := []sample{{At: time.Second, CPU: time.Second}, {At: 2 * time.Second, Cells: 100, CPU: 2 * time.Second},
		{At: 3 * time.Second, Cells: 200, CPU: 3 * time.Second}, {At: 4 * time.Second, Cells: 400, CPU: 4 * time.Second}}
	got := figures(s, 400)
	want := result{Kind: "backlog", Cells: 400, First: 2, Rate: 150, LateRate: 200, CPU: 2e6 / 300, LateCPU: 5000}
	got.Samples = nil
	if d := got.CPU - want.CPU; d > 1 || d < -1 {
		t.Errorf("CPU %v, want %v", got.CPU, want.CPU)
	}
	got.CPU = want.CPU
	if got.String() != want.String() || got.First != want.First || got.LateCPU != want.LateCPU {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := figures(s[3:], 400); got.Rate != 100 || got.LateRate != 100 || got.CPU != 10000 {
		t.Errorf("all in one sample: %+v", got)
	}
	rs := []result{{Rate: 3}, {Rate: 1}, {Rate: 2}}
	rate := func(r result) float64 { return r.Rate }
	if m, even, none := medianOf(rs, rate), medianOf(rs[:2], rate), medianOf(nil, rate); m != 2 || even != 2 || none != 0 {
		t.Errorf("medians %v, %v, %v", m, even, none)
	}
}

func TestWaits(t *testing.T) {
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	l, c := &load{}, &counter{marks: make([][]mark, shards)}
	l.commits[3] = []time.Time{at(0), at(10), at(20), at(30)}
	c.marks[3] = []mark{{1, at(5)}, {3, at(22)}, {4, at(29)}} // the last one was seen before its answer came
	if got := waits(l, c, [shards]int{3: 1}); got.P50 != 2 || got.Max != 12 || got.P99 != 2 {
		t.Errorf("%+v, want waits of 12, 2 and 0 ms", got)
	}
}

func TestSeenBetween(t *testing.T) {
	began := time.Now()
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	c := &counter{marks: [][]mark{{{3, at(1)}, {5, at(2)}, {9, at(4)}}, nil, {{2, at(2)}, {6, at(8)}}}}
	for _, want := range []struct {
		from, to int
		n        int64
		seconds  int
	}{{0, 1, 3, 1}, {1, 2, 4, 1}, {1, 4, 8, 3}, {2, 3, 4, 2}, {4, 5, 4, 4}, {8, 9, 0, 1}} {
		if n, took := seenBetween(c, at(want.from), at(want.to)); n != want.n || took != time.Duration(want.seconds)*time.Second {
			t.Errorf("from %d s to %d s: %d records in %v; want %d in %d s", want.from, want.to, n, took, want.n, want.seconds)
		}
	}
}

func TestProcessCosts(t *testing.T) {
	d, err := parseStat("7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 1 1 1")
	if err != nil || d != 2*time.Second {
		t.Errorf("%v %v, want 2s", d, err)
	}
	if _, err := parseStat("7 (x) S 1"); err == nil {
		t.Error("half a line was read")
	}
	if peakMiB(os.Getpid()) < 1 {
		t.Error("this process has no memory")
	}
}
