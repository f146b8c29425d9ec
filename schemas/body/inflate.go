package body

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/zlib"
)

// inflater is a pooled zlib reader with its buffer.
type inflater struct {
	src bytes.Reader
	zr  io.ReadCloser // nil before its first use
	buf []byte
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
	f.src.Reset(nil) // do not hold the caller's bytes
	if cap(f.buf) <= maxPooled {
		inflaters.Put(f)
	}
}

func (f *inflater) inflate(zipped []byte, limit int) ([]byte, error) {
	f.src.Reset(zipped)
	var err error
	if f.zr == nil {
		f.zr, err = zlib.NewReader(&f.src)
	} else {
		err = f.zr.(zlib.Resetter).Reset(&f.src, nil)
	}
	if err != nil {
		return nil, corrupt(-1, "the zlib header is broken")
	}
	// The length is not stored: start at a likely ratio, and double. Deflate
	// gives at most 1032 bytes for one.
	buf := f.buf[:0]
	if want := min(4*len(zipped)+512, limit+1); cap(buf) < want {
		buf = make([]byte, 0, want)
	}
	for {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*cap(buf)+1, limit+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := f.zr.Read(buf[len(buf):min(cap(buf), limit+1)])
		buf = buf[:len(buf)+n]
		f.buf = buf
		if len(buf) > limit {
			return nil, tooLarge(limit)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, corrupt(-1, "the zlib data is broken")
		}
	}
	if f.src.Len() > 0 {
		return nil, corrupt(-1, "bytes follow the zlib data")
	}
	return buf, nil
}

func tooLarge(limit int) *Error {
	return newError(CodeTooLarge, -1, "the stored body is longer than %d bytes when inflated", limit)
}
