package body

import (
	"encoding/binary"
	"hash/adler32"
	"sync"
)

// An inflater reads one whole zlib stream (RFC 1950 and 1951) from a slice
// into a slice. What makes it fast for bodies of a few hundred bytes, where a
// general reader spends its time on beginning: all its memory is kept from one
// body to the next, a table is as small as its code allows, and input and
// output are checked for their ends once a step. It takes what the standard
// library's reader takes, but for a preset dictionary, which it refuses, and
// bytes behind the stream.
//
// Of the bit buffer the low have bits count; those above may hold bits of
// src[pos] already. Beyond the end of src come zeros, and pos counts on, so
// that nothing has to look for the end while it reads: align finds out.
type inflater struct {
	src  []byte
	pos  int // the next byte to go into bits
	bits uint64
	have uint

	out   []byte // its length is all that may be written to
	n     int    // bytes written
	limit int    // bytes that may be

	lit  [litTable]uint32
	dist [distTable]uint32
	lens [maxLit + maxDist]uint8
	huff sorter
}

var inflaters = sync.Pool{New: func() any { return new(inflater) }}

// inflated gives out one payload and takes its buffer back. The zero value is
// ready.
type inflated struct{ from *inflater }

// open checks header and checksum and returns the payload, inflated if need
// be, at most limit bytes. It is good until release.
func (s *inflated) open(stored []byte, limit int) ([]byte, error) {
	format, payload, err := unseal(stored)
	if err != nil {
		return nil, err
	}
	if format == formatPlain {
		if len(payload) > limit {
			return nil, tooLarge(limit)
		}
		return payload, nil
	}
	s.from = inflaters.Get().(*inflater)
	return s.from.inflate(payload, limit)
}

func (s *inflated) release() {
	f := s.from
	if f == nil {
		return
	}
	s.from = nil
	f.src = nil // do not hold the caller's bytes
	if cap(f.out) <= maxPooled {
		inflaters.Put(f)
	}
}

func tooLarge(limit int) *Error {
	return newError(CodeTooLarge, -1, "the stored body is longer than %d bytes when inflated", limit)
}

func brokenZlib() *Error { return corrupt(-1, "the zlib data is broken") }

// slack is how much of out is free before each step: three literals and a copy
// of 258 bytes, written eight at a time.
const slack = 3 + 258 + 8

// inflate returns what zipped holds, at most limit bytes. It is good until the
// next call.
func (f *inflater) inflate(zipped []byte, limit int) ([]byte, error) {
	const dictionary = 0x20
	if len(zipped) < 2 || zipped[0]&0x0f != 8 || zipped[0]>>4 > 7 || binary.BigEndian.Uint16(zipped)%31 != 0 || zipped[1]&dictionary != 0 {
		return nil, corrupt(-1, "the zlib header is broken")
	}
	f.src, f.pos, f.bits, f.have = zipped, 2, 0, 0
	f.n, f.limit = 0, limit
	// The length is not stored: start at a likely ratio, and double. Deflate
	// gives at most 1032 bytes for one.
	if want := min(4*len(zipped)+512, limit) + slack; cap(f.out) < want {
		f.out = make([]byte, want)
	}
	f.out = f.out[:cap(f.out)]
	for final := false; !final; {
		f.refill()
		head := f.take(3)
		final = head&1 != 0
		var err error
		switch head >> 1 {
		case 0:
			err = f.plain()
		case 1:
			c := fixed()
			err = f.codes(&c.lit, 9, &c.dist, 5)
		case 2:
			err = f.dynamic()
		default:
			err = brokenZlib()
		}
		if err != nil {
			return nil, err
		}
	}
	f.align()
	if f.pos+4 > len(f.src) || binary.BigEndian.Uint32(f.src[f.pos:]) != adler32.Checksum(f.out[:f.n]) {
		return nil, brokenZlib()
	}
	if f.pos+4 != len(f.src) {
		return nil, corrupt(-1, "bytes follow the zlib data")
	}
	return f.out[:f.n], nil
}

// room makes sure that out has want bytes left behind n, and the slack; n must
// not be above limit.
func (f *inflater) room(want int) error {
	if f.n+want > f.limit {
		return tooLarge(f.limit)
	}
	if len(f.out)-f.n < want+slack {
		grown := make([]byte, min(max(2*len(f.out), f.n+want), f.limit)+slack)
		copy(grown, f.out[:f.n])
		f.out = grown
	}
	return nil
}

// refill makes have at least 56.
func (f *inflater) refill() { f.pos, f.bits, f.have = refill(f.src, f.pos, f.bits, f.have) }

func refill(src []byte, pos int, bits uint64, have uint) (int, uint64, uint) {
	if len(src)-pos >= 8 {
		return pos + int(63-have)>>3, bits | binary.LittleEndian.Uint64(src[pos:])<<(have&63), have | 56
	}
	return refillAtEnd(src, pos, bits, have)
}

func refillAtEnd(src []byte, pos int, bits uint64, have uint) (int, uint64, uint) {
	for ; have < 56; have += 8 {
		if pos < len(src) {
			bits |= uint64(src[pos]) << (have & 63)
		}
		pos++
	}
	return pos, bits, have
}

// take returns the next count bits, at most what refill gave.
func (f *inflater) take(count uint) uint {
	v := uint(f.bits) & (1<<count - 1)
	f.bits >>= count
	f.have -= count
	return v
}

// align drops the rest of a byte, and gives whole ones back; pos is then beyond
// the end if bits there were taken.
func (f *inflater) align() {
	f.pos -= int(f.have >> 3)
	f.bits, f.have = 0, 0
}

// plain copies a block that is not compressed.
func (f *inflater) plain() error {
	f.align()
	if f.pos+4 > len(f.src) {
		return brokenZlib()
	}
	count, inverse := binary.LittleEndian.Uint16(f.src[f.pos:]), binary.LittleEndian.Uint16(f.src[f.pos+2:])
	f.pos += 4
	if count != ^inverse || int(count) > len(f.src)-f.pos {
		return brokenZlib()
	}
	if err := f.room(int(count)); err != nil {
		return err
	}
	f.n += copy(f.out[f.n:], f.src[f.pos:f.pos+int(count)])
	f.pos += int(count)
	return nil
}

// lenOrder is the order in which the lengths of the code of lengths come.
var lenOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamic reads a block that begins with its codes.
func (f *inflater) dynamic() error {
	f.refill()
	lits, dists, count := int(f.take(5))+257, int(f.take(5))+1, f.take(4)+4
	if lits > maxLit || dists > maxDist {
		return brokenZlib()
	}
	var lens [19]uint8
	for _, sym := range lenOrder[:count] {
		if f.have < 3 {
			f.refill()
		}
		lens[sym] = uint8(f.take(3))
	}
	// The table of literals lends its place.
	width, ok := f.huff.build(f.lit[:], lens[:], lenMeanings[:], 7)
	if !ok || !f.lengths(width, lits+dists) {
		return brokenZlib()
	}
	root := uint(11)
	if len(f.src) < 4<<10 {
		root = 9 // a table that is large costs more than it saves
	}
	litBits, ok := f.huff.build(f.lit[:], f.lens[:lits], litMeanings[:], root)
	if !ok {
		return brokenZlib()
	}
	distBits, ok := f.huff.build(f.dist[:], f.lens[lits:lits+dists], distMeanings[:], 8)
	if !ok {
		return brokenZlib()
	}
	return f.codes(&f.lit, litBits, &f.dist, distBits)
}

// lengths reads count code lengths into lens; lit has the table of their code.
func (f *inflater) lengths(width uint, count int) bool {
	src, pos, bits, have := f.src, f.pos, f.bits, f.have
	mask := uint64(1)<<width - 1
	clear(f.lens[:])
	for i := 0; i < count; {
		if have < 7+7 {
			if pos > len(src)+8 {
				return false
			}
			pos, bits, have = refill(src, pos, bits, have)
		}
		e := f.lit[bits&mask]
		all, begin := bits, e>>8&15
		bits >>= e & 63
		have -= uint(e & 63)
		if e&literal != 0 {
			f.lens[i] = uint8(e >> 16)
			i++
			continue
		}
		if e&special != 0 {
			return false // no symbol has this code
		}
		begun := i
		i += int(e>>16&0xff) + int(all&(1<<(e&63)-1)>>begin)
		if i > count || e&again != 0 && begun == 0 {
			return false
		}
		if e&again != 0 {
			for j := begun; j < i; j++ {
				f.lens[j] = f.lens[begun-1]
			}
		}
	}
	f.pos, f.bits, f.have = pos, bits, have
	return true
}

// codes reads a block's literals and copies. Each step begins with at least 56
// bits, of which literals take up to 2*11, and a length 15+5; a distance takes
// up to 15+13.
func (f *inflater) codes(lit *[litTable]uint32, litBits uint, dist *[distTable]uint32, distBits uint) error {
	src, pos, bits, have := f.src, f.pos, f.bits, f.have
	out, n := f.out, f.n
	fence := min(len(out)-slack, f.limit)
	litMask, distMask := uint64(1)<<litBits-1, uint64(1)<<distBits-1
	for {
		if n > fence {
			f.n = n
			if err := f.room(0); err != nil {
				return err
			}
			out = f.out
			fence = min(len(out)-slack, f.limit)
		}
		if pos > len(src)+8 {
			return brokenZlib()
		}
		pos, bits, have = refill(src, pos, bits, have)

		e := lit[bits&litMask]
		if e&literal != 0 {
			out[n] = uint8(e >> 16)
			n++
			bits >>= e & 63
			have -= uint(e & 63)
			e = lit[bits&litMask]
			if e&literal != 0 {
				out[n] = uint8(e >> 16)
				n++
				bits >>= e & 63
				have -= uint(e & 63)
				e = lit[bits&litMask]
			}
		}
		if e&link != 0 {
			bits >>= litBits
			have -= litBits
			e = lit[uint64(e>>16)+bits&(1<<(e>>8&15)-1)]
		}
		all, begin := bits, e>>8&15
		bits >>= e & 63
		have -= uint(e & 63)
		if e&(literal|special) != 0 {
			if e&literal != 0 {
				out[n] = uint8(e >> 16)
				n++
				continue
			}
			if e&end == 0 {
				return brokenZlib()
			}
			break
		}
		length := int(e>>16) + int(all&(1<<(e&63)-1)>>begin)

		if have < 15+13 {
			pos, bits, have = refill(src, pos, bits, have)
		}
		e = dist[bits&distMask]
		if e&link != 0 {
			bits >>= distBits
			have -= distBits
			e = dist[uint64(e>>16)+bits&(1<<(e>>8&15)-1)]
		}
		if e&special != 0 {
			return brokenZlib()
		}
		all, begin = bits, e>>8&15
		bits >>= e & 63
		have -= uint(e & 63)
		back := int(e>>16) + int(all&(1<<(e&63)-1)>>begin)
		if back > n {
			return brokenZlib()
		}
		to := out[n : n+length+8]
		from := out[n-back : n+length+8]
		n += length
		switch {
		case back >= 8:
			for i := 0; i < length; i += 8 {
				binary.LittleEndian.PutUint64(to[i:], binary.LittleEndian.Uint64(from[i:]))
			}
		case back == 1:
			c := from[0]
			for i := range to[:length] {
				to[i] = c
			}
		default:
			for i := range to[:length] {
				to[i] = from[i]
			}
		}
	}
	f.pos, f.bits, f.have, f.n = pos, bits, have, n
	return f.room(0)
}
