package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cellog/cellog"
)

const version = 1

// The header fields and the path of a request.
const (
	// WorkerHeader names the worker for which a request is meant.
	WorkerHeader = "Cellog-Worker"
	// MediaType is the content type of requests and answers.
	MediaType = "application/vnd.cellog.forward"
)

// Path returns the path to which a datastore's cells are posted.
func Path(datastore string) string { return "/internal/cells/" + datastore }

// AppendPuts appends a request's body.
func AppendPuts(dst []byte, puts []cellog.Put) []byte {
	dst = append(dst, version)
	for i := range puts {
		dst = appendPut(dst, &puts[i])
	}
	return dst
}

func appendPut(dst []byte, p *cellog.Put) []byte {
	dst = append(dst, p.Row[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.Ref))
	dst = append(append(dst, byte(len(p.Column))), p.Column...)
	dst = append(append(dst, byte(len(p.TraceParent))), p.TraceParent...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(p.Body))), p.Body...)
}

// ParsePuts reads a request's body. The puts' Bodies alias it. The error says
// where it ends early, or that it is of another version.
func ParsePuts(src []byte) ([]cellog.Put, error) {
	r := reader{src: src}
	if v := r.take(1); v == nil || v[0] != version {
		return nil, errors.New("forwarded cells: not of version 1")
	}
	var puts []cellog.Put
	for len(r.src) > 0 {
		p := r.put()
		if r.short {
			return nil, fmt.Errorf("forwarded cells: cell %d ends early", len(puts))
		}
		puts = append(puts, p)
	}
	return puts, nil
}

// Result is what became of one cell: Err, or where the cell is that stands.
type Result struct {
	Stored cellog.Stored
	Err    *Error
}

// AppendResults appends an answer. Of an error's code 255 bytes are kept, of
// its text 1,000; a stored cell's shard is not in it.
func AppendResults(dst []byte, results []Result) []byte {
	dst = append(dst, version)
	for i := range results {
		r := &results[i]
		if r.Err != nil {
			c, text := r.Err.code, r.Err.text
			c, text = c[:min(len(c), math.MaxUint8)], text[:min(len(text), 1000)]
			dst = append(append(dst, 0, byte(len(c))), c...)
			dst = append(binary.BigEndian.AppendUint16(dst, uint16(len(text))), text...)
			continue
		}
		dst = append(dst, byte(r.Stored.Outcome))
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.Stored.AddedID))
		dst = binary.BigEndian.AppendUint32(dst, uint32(r.Stored.Epoch))
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.Stored.CreatedAt.UnixMicro()))
	}
	return dst
}

// Error is what the home worker says of a cell.
type Error struct{ code, text string }

// NewError returns an Error with the code and the words of the one at home.
func NewError(code, text string) *Error { return &Error{code, text} }

// Error returns the home worker's words.
func (e *Error) Error() string { return "the shard's home worker: " + e.text }

// Code returns the stable code.
func (e *Error) Code() string { return e.code }

// ParseResults reads an answer to n cells; the shards are not in it. The error says where it
// ends early, or what it has that no answer has.
func ParseResults(src []byte, n int) ([]Result, error) {
	r := reader{src: src}
	if v := r.take(1); v == nil || v[0] != version {
		return nil, errors.New("the answer is not of version 1")
	}
	results := make([]Result, n)
	for i := range n {
		switch outcome := r.byte(); {
		case outcome == 0:
			e := &Error{code: string(r.take(int(r.byte())))}
			e.text = string(r.take(int(r.uint16())))
			results[i].Err = e
		case cellog.Outcome(outcome) > cellog.Buffered:
			return nil, fmt.Errorf("the answer to cell %d has outcome %d", i, outcome)
		default:
			results[i].Stored = cellog.Stored{Outcome: cellog.Outcome(outcome), AddedID: cellog.AddedID(r.uint64()), Epoch: cellog.Epoch(r.uint32()),
				CreatedAt: time.UnixMicro(int64(r.uint64())).UTC()}
		}
		if r.short {
			return nil, fmt.Errorf("the answer ends within cell %d of %d", i, n)
		}
	}
	if len(r.src) > 0 {
		return nil, fmt.Errorf("the answer goes on after %d cells", n)
	}
	return results, nil
}

// reader cuts fields from src; short says that one was not there.
type reader struct {
	src   []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.src) {
		r.short, r.src = true, nil
		return nil
	}
	out := r.src[:n:n]
	r.src = r.src[n:]
	return out
}

func (r *reader) put() (p cellog.Put) {
	copy(p.Row[:], r.take(16))
	p.Ref = cellog.RefKey(r.uint64())
	p.Column = string(r.take(int(r.byte())))
	p.TraceParent = string(r.take(int(r.byte())))
	p.Body = r.take(int(r.uint32()))
	return p
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}
