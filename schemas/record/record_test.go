package record

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cellog/cellog"
)

func sample() cellog.Cell {
	return cellog.Cell{
		Key:       cellog.Key{Row: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), Column: "FARE_ADJUSTMENT", Ref: -9223372036854775808},
		Datastore: "trips", Shard: 7, AddedID: 1234567, Epoch: 3, Sequence: 42,
		CreatedAt:   time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC),
		Body:        []byte(`{"total":12.95}`),
		TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
}

// Readers in other languages parse these bytes: the golden file changes only
// together with ce_type's version.
func TestGolden(t *testing.T) {
	var got bytes.Buffer
	dumpForm := func(c cellog.Cell, form Form) {
		r := NewEncoder(c.Datastore).Encode(&c, form, nil)
		fmt.Fprintf(&got, "key %q\nvalue %+q\ntime %d\n", r.Key, r.Value, r.Time.UnixMicro())
		for _, h := range r.Headers {
			fmt.Fprintf(&got, "header %q %q\n", h.Key, h.Value)
		}
		got.WriteByte('\n')
	}
	dump := func(c cellog.Cell) { dumpForm(c, JSON) }
	dump(sample())
	first := sample()
	first.Column, first.Ref, first.TraceParent, first.CreatedAt = "B", 9223372036854775807, "", time.Unix(1, 0)
	first.Shard, first.AddedID, first.Sequence, first.Epoch = 0, 1, 1, 1
	dump(first)
	for _, form := range []Form{MessagePack, Stored} {
		dumpForm(inForm(t, first, form), form)
	}

	file := filepath.Join("testdata", "records.golden")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("records differ from %s (-want +got):\n%s", file, diff)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cellog.Cell{
			Key: cellog.Key{
				Row:    uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "row")),
				Column: rapid.StringMatching(`[A-Za-z][A-Za-z0-9_]{0,63}`).Draw(t, "column"),
				Ref:    cellog.RefKey(rapid.Int64().Draw(t, "ref")),
			},
			Datastore: rapid.StringMatching(`[a-z][a-z0-9]{0,30}`).Draw(t, "datastore"),
			Shard:     cellog.ShardID(rapid.IntRange(0, cellog.MaxShards-1).Draw(t, "shard")),
			AddedID:   cellog.AddedID(rapid.Int64Min(1).Draw(t, "added_id")),
			Epoch:     cellog.Epoch(rapid.Int32Min(1).Draw(t, "epoch")),
			Sequence:  cellog.Sequence(rapid.Int64Min(1).Draw(t, "sequence")),
			CreatedAt: time.UnixMicro(rapid.Int64Range(0, 253402300799999999).Draw(t, "time")).UTC(),
			Body:      []byte(rapid.StringN(1, -1, -1).Draw(t, "body")),
		}
		if rapid.Bool().Draw(t, "traced") {
			c.TraceParent = rapid.StringN(1, -1, 55).Draw(t, "traceparent")
		}
		got, err := Decode(Encode(&c))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Later versions may add headers, and clients may reorder them.
func TestDecodeUnknownAndReordered(t *testing.T) {
	c := sample()
	r := Encode(&c)
	hs := []Header{{"ce_new", []byte("x")}, {"ce_new", nil}}
	for i := len(r.Headers) - 1; i >= 0; i-- {
		hs = append(hs, r.Headers[i])
	}
	r.Headers = hs
	got, err := Decode(r)
	if err != nil || cmp.Diff(c, got) != "" {
		t.Error(err, cmp.Diff(c, got))
	}
}

func TestDecodeRefuses(t *testing.T) {
	set := func(name, value string) func(*Record) {
		return func(r *Record) {
			for i := range r.Headers {
				if r.Headers[i].Key == name {
					r.Headers[i].Value = []byte(value)
					return
				}
			}
			panic(name)
		}
	}
	for _, tt := range []struct {
		name string
		do   func(*Record)
		want string
	}{
		{"key of another row", func(r *Record) { r.Key = []byte("00000000-0000-0000-0000-000000000000") }, "ce_subject has the row 6ba7b810"},
		{"no key", func(r *Record) { r.Key = nil }, "the key is"},
		{"upper case", func(r *Record) {
			up := strings.ToUpper(string(r.Key))
			r.Key = []byte(up)
			set(HeaderSubject, up+"/BASE/1")(r)
		}, "lower case"},
		{"tombstone", func(r *Record) { r.Value = nil }, "the value is empty"},
		{"twice", func(r *Record) { r.Headers = append(r.Headers, Header{HeaderID, []byte("trips/7/1")}) }, "header ce_id is there twice"},
		{"content type", set(HeaderContentType, "text/plain"), "content-type"},
		{"spec", set(HeaderSpecVersion, "2.0"), "ce_specversion"},
		{"type", set(HeaderType, "cellog.cell.v2"), "ce_type"},
		{"source", set(HeaderSource, "/cellog/riders"), "ce_source"},
		{"id short", set(HeaderID, "trips/7"), "ce_id"},
		{"id datastore", set(HeaderID, "Trips/7/1"), "ce_id: datastore"},
		{"id shard", set(HeaderID, "trips/07/1"), "the shard"},
		{"id shard sign", set(HeaderID, "trips/-1/1"), "the shard"},
		{"id shard range", set(HeaderID, "trips/10000/1"), "the shard"},
		{"id added", set(HeaderID, "trips/7/0"), "added_id"},
		{"id added form", set(HeaderID, "trips/7/+1"), "added_id"},
		{"id long", set(HeaderID, "trips/7/1/2"), "added_id"},
		{"subject", set(HeaderSubject, "x"), "ce_subject"},
		{"subject row", set(HeaderSubject, "x/BASE/1"), "row_key"},
		{"subject column", set(HeaderSubject, "6ba7b810-9dad-11d1-80b4-00c04fd430c8/_all/1"), "column"},
		{"subject ref", set(HeaderSubject, "6ba7b810-9dad-11d1-80b4-00c04fd430c8/BASE/01"), "ref_key"},
		{"time digits", set(HeaderTime, "2026-02-03T04:05:06.007Z"), "ce_time"},
		{"time zone", set(HeaderTime, "2026-02-03T04:05:06.000007+00:00"), "ce_time"},
		{"time comma", set(HeaderTime, "2026-02-03T04:05:06,000007Z"), "ce_time"},
		{"sequence", set(HeaderSequence, "0"), "ce_sequence"},
		{"sequence range", set(HeaderSequence, "9223372036854775808"), "ce_sequence"},
		{"epoch", set(HeaderEpoch, ""), "ce_epoch"},
		{"epoch range", set(HeaderEpoch, "2147483648"), "ce_epoch"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := sample()
			r := Encode(&c)
			tt.do(&r)
			got, err := Decode(r)
			if !errors.Is(err, ErrNotACell) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			if got.Body != nil || got.Datastore != "" {
				t.Error("a refused record gave a cell")
			}
		})
	}
	for i, name := range headerNames[:MaxHeaders-1] {
		c := sample()
		r := Encode(&c)
		r.Headers = append(r.Headers[:i:i], r.Headers[i+1:]...)
		if _, err := Decode(r); err == nil || !strings.Contains(err.Error(), "header "+name+" is missing") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// Appending to one value must not overwrite its neighbour in the shared buffer.
func TestValuesDoNotOverlap(t *testing.T) {
	c := sample()
	r := Encode(&c)
	_ = append(r.Key, "overwritten"...)
	for _, h := range r.Headers[2:] {
		_ = append(h.Value, "overwritten"...)
	}
	if got, err := Decode(r); err != nil || cmp.Diff(c, got) != "" {
		t.Error(err, cmp.Diff(c, got))
	}
}

func TestEncodeAllocations(t *testing.T) {
	c := sample()
	c.Datastore = "d23456789012345678901234567890a"
	c.Column = strings.Repeat("C", 64)
	c.Shard, c.AddedID, c.Sequence, c.Epoch = 9999, 1<<63-1, 1<<63-1, 1<<31-1
	e := NewEncoder(c.Datastore)
	headers := make([]Header, 0, MaxHeaders)
	if n := testing.AllocsPerRun(100, func() { sink = e.Encode(&c, JSON, headers) }); n > 1 {
		t.Errorf("Encode takes %v allocations, want at most 1", n)
	}
}

var sink Record

func BenchmarkEncode(b *testing.B) {
	c := sample()
	e := NewEncoder(c.Datastore)
	b.ReportAllocs()
	defer reportCPU(b)()
	headers := make([]Header, 0, MaxHeaders)
	for b.Loop() {
		sink = e.Encode(&c, JSON, headers)
	}
}

// BenchmarkValue is what a body costs the tailer in each form, beside the
// record's headers.
func BenchmarkValue(b *testing.B) {
	text := `{"driver_partner_uuid":"0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77","city_uuid":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","trip_created_at":"2026-03-23T20:18:00Z",` +
		`"legs":[{"from":{"zone":"Upper East Side North","city":"New York","lat":40.7679,"lng":-73.9821},"to":{"zone":"Long Island City","city":"New York","lat":40.7656,"lng":-73.9646},"miles":3.4},` +
		`{"from":{"zone":"Long Island City","city":"New York","lat":40.7512,"lng":-73.9411},"to":{"zone":"Astoria","city":"New York","lat":40.7723,"lng":-73.9301},"miles":2.1}],"fare":17.50,"tip":2.15,"tolls":0.0,"payment":"credit card"}`
	in := stored(b, text)
	if in[0] != 1 {
		b.Fatal("the body is not zipped")
	}
	for _, form := range []Form{JSON, MessagePack, Stored} {
		b.Run(string(form), func(b *testing.B) {
			var out []byte
			var err error
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				if out, _, err = AppendValue(out[:0], in, form); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(out)), "value-B")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	c := sample()
	r := Encode(&c)
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		if _, err := Decode(r); err != nil {
			b.Fatal(err)
		}
	}
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
