package body

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	kzlib "github.com/klauspost/compress/zlib"
)

// standard is what the standard library says of a stream: its bytes, or an
// error, also when there are more than limit bytes or bytes behind it.
func standard(zipped []byte, limit int) ([]byte, error) {
	src := bytes.NewReader(zipped)
	r, err := zlib.NewReader(src)
	if err != nil {
		return nil, err
	}
	if zipped[1]&0x20 != 0 {
		return nil, errors.New("a preset dictionary, if only an empty one")
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(out) > limit {
		err = errors.New("too long")
	}
	if err == nil && src.Len() > 0 {
		err = errors.New("bytes follow")
	}
	return out, err
}

// compareInflate holds the inflater against the standard library, at a limit.
func compareInflate(t testing.TB, f *inflater, zipped []byte, limit int) {
	t.Helper()
	want, wantErr := standard(zipped, limit)
	before := len(f.out)
	got, err := f.inflate(zipped, limit)
	switch {
	case (err == nil) != (wantErr == nil):
		t.Fatalf("%x, at most %d bytes: error %v, the standard library's is %v", zipped, limit, err, wantErr)
	case err == nil && !bytes.Equal(got, want):
		t.Fatalf("%x: got %.200x, want %.200x", zipped, got, want)
	case err != nil && CodeOf(err) != CodeCorrupt && (CodeOf(err) != CodeTooLarge || len(want) <= limit):
		t.Fatalf("%x, at most %d bytes: error %v, the standard library's is %v", zipped, limit, err, wantErr)
	}
	if len(f.out) > max(before, limit+slack) {
		t.Fatalf("%d bytes of memory for at most %d", len(f.out), limit)
	}
}

// zip packs in by a level of either library; huffman, stored and blocks of
// several kinds come too.
func zip(t testing.TB, rnd *rand.Rand, in []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	}
	var err error
	if level := rnd.IntN(12) - 2; rnd.IntN(2) == 0 {
		w, err = zlib.NewWriterLevel(&out, level)
	} else {
		w, err = kzlib.NewWriterLevel(&out, level)
	}
	if err != nil {
		t.Fatal(err)
	}
	for len(in) > 0 {
		n := min(len(in), 1+rnd.IntN(2*len(in)))
		if _, err := w.Write(in[:n]); err != nil {
			t.Fatal(err)
		}
		if in = in[n:]; rnd.IntN(4) == 0 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sample is bytes that pack in very different ways.
func sample(rnd *rand.Rand) []byte {
	n := rnd.IntN(1 << rnd.IntN(12))
	if rnd.IntN(40) == 0 {
		n = rnd.IntN(200_000)
	}
	out := make([]byte, n)
	symbols := 1 << rnd.IntN(9)
	switch rnd.IntN(5) {
	case 0: // noise of few or many symbols
		for i := range out {
			out[i] = byte(rnd.IntN(symbols))
		}
	case 1: // very uneven: long codes
		for i := range out {
			out[i] = byte(rnd.ExpFloat64() * float64(symbols) / 8)
		}
	case 2: // copies from near and far
		for i := 0; i < n; {
			if i == 0 || rnd.IntN(3) == 0 {
				out[i] = byte(rnd.IntN(symbols))
				i++
				continue
			}
			back := 1 + rnd.IntN(min(i, 1<<rnd.IntN(16)))
			for end := min(n, i+1+rnd.IntN(300)); i < end; i++ {
				out[i] = out[i-back]
			}
		}
	case 3:
		copy(out, bytes.Repeat([]byte{byte(rnd.IntN(256))}, n))
	default:
		text := []byte(strings.Repeat(trip, n/len(trip)+1))
		for range len(text) / 40 {
			text[rnd.IntN(len(text))] = byte('0' + rnd.IntN(10))
		}
		copy(out, text)
	}
	return out
}

// Whatever either library packs comes back, and a damaged stream is read as the
// standard library reads it: cut anywhere, with a bit flipped, with bytes
// behind it, at any limit.
func TestInflateLikeTheStandardLibrary(t *testing.T) {
	rnd := seeded(t)
	f := new(inflater)
	for range 100 {
		in := sample(rnd)
		zipped := zip(t, rnd, in)
		got, err := f.inflate(zipped, len(in))
		if err != nil || !bytes.Equal(got, in) {
			t.Fatalf("%x of %d bytes: %v", zipped, len(in), err)
		}
		compareInflate(t, f, zipped, rnd.IntN(len(in)+2))
		compareInflate(t, f, append(bytes.Clone(zipped), byte(rnd.Uint32())), 1<<20)
		if len(zipped) > 2000 {
			continue // the rest takes as often as it is long
		}
		for n := range zipped {
			compareInflate(t, f, zipped[:n], 1<<20)
		}
		for range 100 {
			damaged := bytes.Clone(zipped)
			for range 1 + rnd.IntN(3) {
				bit := rnd.IntN(8 * len(damaged))
				damaged[bit/8] ^= 1 << (bit % 8)
			}
			compareInflate(t, f, damaged, 1<<16)
		}
	}
}

// bitWriter writes a deflate stream bit by bit.
type bitWriter struct {
	out  []byte
	bits uint64
	have uint
}

func (w *bitWriter) put(v uint64, count uint) {
	for w.bits, w.have = w.bits|v<<w.have, w.have+count; w.have >= 8; w.bits, w.have = w.bits>>8, w.have-8 {
		w.out = append(w.out, byte(w.bits))
	}
}

// Blocks whose codes are made by dice: right ones, incomplete ones,
// oversubscribed ones, with symbols that mean nothing. What an encoder would
// never write is refused, or read, exactly as the standard library does it.
func TestInflateCodesByDice(t *testing.T) {
	const rounds = 5000
	rnd := seeded(t)
	f := new(inflater)
	passed := 0
	for range rounds {
		w := &bitWriter{out: []byte{0x78, 0x01}}
		for final := uint64(0); final == 0; {
			final = uint64(rnd.IntN(3)) / 2
			w.put(final, 1)
			if rnd.IntN(5) == 0 {
				w.put(1, 2)
			} else {
				w.put(2, 2)
				diceCodes(w, rnd)
			}
			for range rnd.IntN(12) {
				w.put(rnd.Uint64N(1<<16), uint(rnd.IntN(17)))
			}
			w.put(0, uint(rnd.IntN(3))*7) // ends a block of fixed codes
		}
		w.put(0, 7)
		// The right sum, where there is one.
		if out, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(w.out[2:])), 1<<16)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			for n := 3; n <= len(w.out); n++ {
				zipped := binary.BigEndian.AppendUint32(bytes.Clone(w.out[:n]), adler32.Checksum(out))
				compareInflate(t, f, zipped, 1<<16)
				if _, err := f.inflate(zipped, 1<<16); err == nil {
					passed++
				}
			}
		}
		compareInflate(t, f, append(w.out, 0, 0, 0, 1), 1<<16)
	}
	if passed < rounds/100 {
		t.Errorf("%d of %d streams were right: the dice are bad", passed, rounds)
	}
}

// What means nothing is refused, although all else of its stream is right for
// one who would take it.
func TestInflateRefusesWhatMeansNothing(t *testing.T) {
	code := func(w *bitWriter, v, count int) { // a code's first bit comes first
		for b := count - 1; b >= 0; b-- {
			w.put(uint64(v>>b&1), 1)
		}
	}
	fixedBlock := func(w *bitWriter) {
		w.put(1|1<<1, 3)
		code(w, 0x30+'a', 8)
	}
	// dynamic begins a block in which lengths 0 and 1, and 18, have the codes
	// 10, 0 and 11.
	dynamic := func(w *bitWriter, lits, dists int) {
		w.put(1|2<<1, 3)
		w.put(uint64(lits-257), 5)
		w.put(uint64(dists-1), 5)
		w.put(18-4, 4)
		for _, sym := range lenOrder[:18] {
			w.put(map[uint8]uint64{0: 2, 1: 1, 18: 2}[sym], 3)
		}
	}
	zeros := func(w *bitWriter, n int) {
		code(w, 3, 2)
		w.put(uint64(n-11), 7)
	}
	for _, tt := range []struct {
		name, want string
		write      func(w *bitWriter)
	}{
		{"control", "aaaa", func(w *bitWriter) { fixedBlock(w); code(w, 1, 7); code(w, 0, 5); code(w, 0, 7) }},
		{"length 286", "a", func(w *bitWriter) { fixedBlock(w); code(w, 0xc6, 8); code(w, 0, 5); code(w, 0, 7) }},
		{"length 287", "a", func(w *bitWriter) { fixedBlock(w); code(w, 0xc7, 8); code(w, 0, 5); code(w, 0, 7) }},
		{"distance 30", "aaaa", func(w *bitWriter) { fixedBlock(w); code(w, 1, 7); code(w, 30, 5); code(w, 0, 7) }},
		{"distance 31", "aaaa", func(w *bitWriter) { fixedBlock(w); code(w, 1, 7); code(w, 31, 5); code(w, 0, 7) }},
		{"control, dynamic", "a", func(w *bitWriter) {
			dynamic(w, 257, 1)
			zeros(w, 97)
			code(w, 0, 1) // 'a'
			zeros(w, 138)
			zeros(w, 20)
			code(w, 0, 1) // the end
			code(w, 2, 2)
			code(w, 0, 1)
			code(w, 1, 1)
		}},
		{"287 literals", "a", func(w *bitWriter) {
			dynamic(w, 287, 1)
			zeros(w, 97)
			code(w, 0, 1)
			zeros(w, 138)
			zeros(w, 20)
			code(w, 0, 1)
			zeros(w, 31)
			code(w, 0, 1)
			code(w, 1, 1)
		}},
		{"31 distances", "a", func(w *bitWriter) {
			dynamic(w, 257, 31)
			zeros(w, 97)
			code(w, 0, 1)
			zeros(w, 138)
			zeros(w, 20)
			code(w, 0, 1)
			zeros(w, 31)
			code(w, 0, 1)
			code(w, 1, 1)
		}},
		{"more lengths than there are", "a", func(w *bitWriter) {
			dynamic(w, 257, 1)
			zeros(w, 97)
			code(w, 0, 1)
			zeros(w, 138)
			zeros(w, 20)
			code(w, 0, 1)
			zeros(w, 11)
			code(w, 0, 1)
			code(w, 1, 1)
		}},
	} {
		w := &bitWriter{out: []byte{0x78, 0x01}}
		tt.write(w)
		w.put(0, 7)
		zipped := binary.BigEndian.AppendUint32(w.out, adler32.Checksum([]byte(tt.want)))
		compareInflate(t, new(inflater), zipped, 100)
		if _, err := new(inflater).inflate(zipped, 100); (err == nil) != strings.HasPrefix(tt.name, "control") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// diceCodes writes the codes of a block: most of them right.
func diceCodes(w *bitWriter, rnd *rand.Rand) {
	lits, dists := 257+rnd.IntN(32)*rnd.IntN(2), 1+rnd.IntN(32)*rnd.IntN(2)
	w.put(uint64(lits-257), 5)
	w.put(uint64(dists-1), 5)
	// A code of 4 bits for the lengths 0 to 15, or one with repetitions.
	w.put(15, 4)
	plain := rnd.IntN(2) == 0
	lens := [19]uint64{}
	for i := range lens {
		switch {
		case plain && i < 16:
			lens[i] = 4
		case !plain && (i < 13 || i > 15):
			lens[i] = 4
		}
		if rnd.IntN(500) == 0 {
			lens[i] = uint64(rnd.IntN(8))
		}
	}
	for _, sym := range lenOrder {
		w.put(lens[sym], 3)
	}
	put := func(length int) { // its code, first bit lowest
		for b := 3; b >= 0; b-- {
			w.put(uint64(length>>b&1), 1)
		}
	}
	if !plain && rnd.IntN(2) == 0 {
		for range rnd.IntN(60) {
			put(rnd.IntN(16)) // 13, 14 and 15 repeat
		}
		return
	}
	for _, count := range []int{lits, dists} {
		all := diceLengths(rnd, count)
		if count == lits && rnd.IntN(4) > 0 {
			all[256] = max(all[256], 1)
		}
		for _, l := range all {
			put(l)
		}
	}
}

// diceLengths returns the lengths of a complete code over some of count
// symbols, sometimes with a mistake.
func diceLengths(rnd *rand.Rand, count int) []int {
	longest := 15
	lens := []int{0}
	for len(lens) < count && rnd.IntN(12) > 0 {
		if i := rnd.IntN(len(lens)); lens[i] < longest {
			lens[i]++
			lens = append(lens, lens[i])
		}
	}
	lens = append(lens, make([]int, count-len(lens))...)
	rnd.Shuffle(count, func(i, j int) { lens[i], lens[j] = lens[j], lens[i] })
	if rnd.IntN(8) == 0 {
		lens[rnd.IntN(count)] = rnd.IntN(13)
	}
	return lens
}

// FuzzInflate: as TestInflateLikeTheStandardLibrary, for any bytes.
func FuzzInflate(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		if in := sample(rnd); len(in) < 5000 {
			f.Add(zip(f, rnd, in), uint32(1<<16))
		}
	}
	f.Fuzz(func(t *testing.T, zipped []byte, limit uint32) {
		compareInflate(t, new(inflater), zipped, int(limit%(1<<20)))
	})
}

// Nothing is made anew for a body like the one before.
func TestInflateAllocatesNothing(t *testing.T) {
	zipped := deflate(t, []byte(trip))
	f := new(inflater)
	if got := testing.AllocsPerRun(100, func() {
		if _, err := f.inflate(zipped, 1<<20); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// seeded is random; CELLOG_SEED repeats a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("CELLOG_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("CELLOG_SEED=%q: want a number", s)
		}
	}
	t.Logf("replay with CELLOG_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
