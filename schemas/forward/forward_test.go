package forward

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

func somePuts() []cellog.Put {
	return []cellog.Put{
		{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: -1 << 63}, Body: []byte("stored")},
		{Key: cellog.Key{Row: uuid.New(), Column: strings.Repeat("C", 64), Ref: 1<<63 - 1}, Body: []byte{}, TraceParent: strings.Repeat("t", 55)},
	}
}

func TestPutsComeBack(t *testing.T) {
	puts := somePuts()
	got, err := ParsePuts(AppendPuts(nil, puts))
	if err != nil || !reflect.DeepEqual(got, puts) {
		t.Fatalf("%v, %v, want %v", got, err, puts)
	}
}

func someRun() []cellog.Cell {
	var cells []cellog.Cell
	for i, p := range somePuts() {
		cells = append(cells, cellog.Cell{Key: p.Key, Body: p.Body, TraceParent: p.TraceParent, Shard: 7, Epoch: 3,
			AddedID: 1<<40 + cellog.AddedID(i), CreatedAt: time.UnixMicro(1_700_000_000_123_456 + int64(i)).UTC()})
	}
	return cells
}

func TestRunsComeBack(t *testing.T) {
	want := someRun()
	got, err := ParseRun(AppendRun(nil, want), 7, 3)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, %v, want %v", got, err, want)
	}
}

func someResults() []Result {
	return []Result{
		{Stored: cellog.Stored{Outcome: cellog.Created, AddedID: 1 << 40, Epoch: 3, CreatedAt: time.UnixMicro(1_700_000_000_123_456).UTC()}},
		{Err: NewError("overloaded", "too much")},
		{Stored: cellog.Stored{Outcome: cellog.Conflict, AddedID: 1, Epoch: 1, CreatedAt: time.UnixMicro(0).UTC()}},
	}
}

func TestResultsComeBack(t *testing.T) {
	want := someResults()
	got, err := ParseResults(AppendResults(nil, want), len(want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, %v, want %v", got, err, want)
	}
}

// Whatever is cut off anywhere is an error, and so is what follows.
func TestCutBytes(t *testing.T) {
	whole := AppendPuts(nil, somePuts())
	first := len(AppendPuts(nil, somePuts()[:1]))
	for n := range whole {
		if _, err := ParsePuts(whole[:n]); (err == nil) != (n == 1 || n == first) {
			t.Errorf("%d of %d bytes of a request: %v", n, len(whole), err)
		}
	}
	run := AppendRun(nil, someRun())
	first = len(AppendRun(nil, someRun()[:1]))
	for n := range run {
		if _, err := ParseRun(run[:n], 7, 3); (err == nil) != (n == first) {
			t.Errorf("%d of %d bytes of a run: %v", n, len(run), err)
		}
	}
	answer := AppendResults(nil, someResults())
	for n := range answer {
		if _, err := ParseResults(answer[:n], 3); err == nil {
			t.Errorf("%d of %d bytes of an answer: no error", n, len(answer))
		}
	}
	if _, err := ParseResults(append(answer, 0), 3); err == nil {
		t.Error("an answer that goes on: no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(AppendPuts(nil, somePuts()))
	f.Add(AppendResults(nil, someResults()))
	f.Add(AppendRun(nil, someRun()))
	f.Fuzz(func(t *testing.T, src []byte) {
		if puts, err := ParsePuts(src); err == nil {
			if again := AppendPuts(nil, puts); string(again) != string(src) {
				t.Errorf("%x came back as %x", src, again)
			}
		}
		if cells, err := ParseRun(src, 7, 3); err == nil {
			if again := AppendRun(nil, cells); string(again) != string(src) {
				t.Errorf("%x came back as %x", src, again)
			}
		}
		_, _ = ParseResults(src, 3) // must not crash
	})
}
