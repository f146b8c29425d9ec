package body

import (
	"math/bits"
	"sync"
)

// The sizes of deflate's alphabets as they may be declared, and of the largest
// tables that any code over all 288 and 32 symbols needs with 11 and 8 bits in
// the first step ("enough 288 11 15" and "enough 32 8 15" of zlib's examples).
const (
	maxLit, maxDist     = 286, 30
	litTable, distTable = 2342, 402
)

// A table is looked up with the next bits of the stream, at most as many as
// its code's longest. An entry says what they mean:
//
//	bits 0-5    how many bits to take, extra ones included
//	bits 8-11   how many of these are the code; of a link, how many bits the
//	            second step looks at
//	bits 13-15  end: the block ends. link: the second step's entries begin at
//	            bits 16-31. special: neither a length nor a distance
//	bits 16-30  the literal, the length or the distance without extra bits
//	bit  31     literal
//
// In the code of code lengths a length is a literal, and all else is how many
// zeros follow, or, with again, how often the last length comes again.
const (
	end     = 1 << 13
	again   = 1 << 13
	link    = 1 << 14
	special = 1 << 15
	literal = 1 << 31
)

// What symbols mean: an entry without the length of its code, and with the
// number of extra bits in place of all.
var (
	lenMeanings = func() (m [19]uint32) {
		for l := range uint32(16) {
			m[l] = literal | l<<16
		}
		m[16], m[17], m[18] = again|3<<16|2, 3<<16|3, 11<<16|7
		return m
	}()
	litMeanings = func() (m [288]uint32) {
		for c := range uint32(256) {
			m[c] = literal | c<<16
		}
		m[256] = special | end
		base := uint32(3)
		for i := range uint32(28) { // 265 is the first with an extra bit
			extra := max(i/4, 1) - 1
			m[257+i] = base<<16 | extra
			base += 1 << extra
		}
		m[285] = 258 << 16
		m[286], m[287] = special, special
		return m
	}()
	distMeanings = func() (m [32]uint32) {
		base := uint32(1)
		for i := range uint32(30) {
			extra := max(i/2, 1) - 1
			m[i] = base<<16 | extra
			base += 1 << extra
		}
		m[30], m[31] = special, special
		return m
	}()
)

// codes of blocks that bring none.
type fixedCodes struct {
	lit  [litTable]uint32
	dist [distTable]uint32
}

var fixed = sync.OnceValue(func() *fixedCodes {
	var lens [288]uint8
	for i := range lens {
		switch {
		case i < 144:
			lens[i] = 8
		case i < 256:
			lens[i] = 9
		case i < 280:
			lens[i] = 7
		default:
			lens[i] = 8
		}
	}
	var c fixedCodes
	var s sorter
	s.build(c.lit[:], lens[:], litMeanings[:], 9)
	for i := range lens[:32] {
		lens[i] = 5
	}
	s.build(c.dist[:], lens[:32], distMeanings[:], 5)
	return &c
})

// sorter builds tables. It is scratch memory only.
type sorter struct {
	used, sorted [288]uint16
}

// build makes the table of a canonical code from its symbols' lengths, 0 to
// 15, and returns how many bits the first step looks at: root, or the longest
// length. ok is false unless the code is complete; a code of one bit and one
// symbol is taken all the same, as zlib does, and one of none at all fails
// when it is used.
func (s *sorter) build(table []uint32, lens []uint8, meanings []uint32, root uint) (width uint, ok bool) {
	// Most symbols have no code: the rest is about those that have one.
	used := 0
	for sym, l := range lens {
		s.used[used] = uint16(sym)
		if l != 0 {
			used++
		}
	}
	var counts, next [16]uint16
	for _, sym := range s.used[:used] {
		counts[lens[sym]&15]++
	}
	longest := uint(15)
	for longest > 0 && counts[longest] == 0 {
		longest--
	}
	if longest == 0 {
		table[0] = special
		return 0, true
	}
	at, space := uint16(0), 0
	for l := uint(1); l <= longest; l++ {
		next[l] = at
		at += counts[l]
		space = space<<1 + int(counts[l])
	}
	sorted := s.sorted[:used]
	for _, sym := range s.used[:used] {
		l := lens[sym] & 15
		sorted[next[l]] = sym
		next[l]++
	}
	entry := func(i int, length uint) uint32 {
		return meanings[sorted[i]] + uint32(length)<<8 + uint32(length)
	}
	if space != 1<<longest {
		if longest != 1 || space != 1 {
			return 0, false
		}
		table[0], table[1] = entry(0, 1), special
		return 1, true
	}
	// Codes are put in with their first bit lowest, as they come in the
	// stream. The table is filled for the present length, and doubles with it.
	width = min(root, longest)
	code, size := 0, 1
	i := 0
	for l := uint(1); l <= width; l++ {
		copy(table[size:2*size], table[:size])
		size *= 2
		for range counts[l] {
			table[code] = entry(i, l)
			code = successor(code, size)
			i++
		}
	}
	// Longer ones share a link for each of their first width bits.
	first, begin := -1, 0
	filled := size
	for l := width + 1; l <= longest; l++ {
		for left := counts[l]; left > 0; left-- {
			if prefix := code & (size - 1); prefix != first {
				first, begin = prefix, filled
				// As wide as the codes of this prefix need.
				more := l - width
				for room := int(left); room < 1<<more; room = room<<1 + int(counts[width+more]) {
					more++
				}
				filled += 1 << more
				table[prefix] = uint32(begin)<<16 | link | special | uint32(more)<<8
			}
			e := entry(i, l-width)
			for j := begin + code>>width; j < filled; j += 1 << (l - width) {
				table[j] = e
			}
			code = successor(code, 1<<l)
			i++
		}
	}
	return width, true
}

// successor returns the code after a code with its first bit lowest, of a
// length that has size codes; 0 after the last.
func successor(code, size int) int {
	rest := code ^ (size - 1) // the bits that are 0
	if rest == 0 {
		return 0
	}
	top := 1 << (bits.Len(uint(rest)) - 1)
	return code&(top-1) | top
}
