package body

import (
	"encoding/binary"
	"hash/crc32"
)

// The formats. An unknown one is refused by every reader.
const (
	formatZlib  = 1 // MessagePack, then zlib
	formatPlain = 2 // MessagePack
)

// headerLen is the length of format byte and checksum.
const headerLen = 5

const (
	// DefaultBytes is the default of Limits.Bytes: 8 MiB.
	DefaultBytes = 8 << 20
	// MaxBytes is the largest Limits.Bytes: 10 MiB. A payload is at most one
	// and a half times its text, and must fit a MEDIUMBLOB of 16 MiB.
	MaxBytes = 10 << 20
	// DefaultDepth is the default of Limits.Depth.
	DefaultDepth = 1000
	// MaxDepth is the largest Limits.Depth, and the depth to which stored
	// bytes are read.
	MaxDepth = 10000
)

// Limits bound what Encode takes.
type Limits struct {
	// Bytes is the longest JSON text in bytes. 0 means DefaultBytes; more than
	// MaxBytes means MaxBytes.
	Bytes int
	// Depth is how deep containers may nest: 1 is a container of scalars. 0
	// means DefaultDepth; more than MaxDepth means MaxDepth.
	Depth int
}

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.Depth <= 0 {
		l.Depth = DefaultDepth
	}
	l.Bytes = min(l.Bytes, MaxBytes)
	l.Depth = min(l.Depth, MaxDepth)
	return l
}

// payloadCap is the longest payload that Encode writes for so much JSON.
func payloadCap(json int) int { return json + json/2 + 16 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode checks that json is one JSON value within the limits and appends its
// stored form to dst, in one pass over its tokens. The error is an *Error of
// one of the client's codes, and then dst is returned as it was.
func Encode(dst, json []byte, limits Limits) ([]byte, error) {
	limits = limits.withDefaults()
	e := encoders.Get().(*encoder)
	defer e.release()
	if err := e.encode(json, limits); err != nil {
		return dst, err
	}
	return e.seal(dst)
}

// AppendJSON appends the JSON text of a stored body to dst. max is the longest
// text to return, in bytes; 0 means MaxBytes. The error is an *Error with
// CodeCorrupt, CodeUnknownFormat or CodeTooLarge, and then dst is returned as
// it was.
func AppendJSON(dst, stored []byte, max int) ([]byte, error) {
	if max <= 0 || max > MaxBytes {
		max = MaxBytes
	}
	var scratch inflated
	payload, err := scratch.open(stored, payloadCap(max))
	defer scratch.release()
	if err != nil {
		return dst, err
	}
	out, err := appendPayload(dst, payload, max)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// AppendMessagePack appends the MessagePack of a stored body to dst, checked as
// AppendJSON checks it. max is the most bytes to return; 0 means MaxBytes. The
// error is AppendJSON's, and then dst is returned as it was.
func AppendMessagePack(dst, stored []byte, max int) ([]byte, error) {
	if max <= 0 || max > MaxBytes {
		max = MaxBytes
	}
	var scratch inflated
	payload, err := scratch.open(stored, max)
	defer scratch.release()
	if err == nil {
		err = checkPayload(payload)
	}
	if err != nil {
		return dst, err
	}
	return append(dst, payload...), nil
}

// AppendMessagePackJSON appends the JSON text of MessagePack that
// AppendMessagePack returned to dst. max and the error are AppendJSON's.
func AppendMessagePackJSON(dst, payload []byte, max int) ([]byte, error) {
	if max <= 0 || max > MaxBytes {
		max = MaxBytes
	}
	out, err := appendPayload(dst, payload, max)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// Check verifies the format and the checksum of a stored body, but reads no
// further. The error is an *Error with CodeCorrupt or CodeUnknownFormat.
func Check(stored []byte) error {
	_, _, err := unseal(stored)
	return err
}

// seal appends header and payload to dst.
func seal(dst []byte, format byte, payload []byte) []byte {
	dst = append(dst, format)
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(payload, castagnoli))
	return append(dst, payload...)
}

// unseal checks the header and returns format and payload, which aliases
// stored.
func unseal(stored []byte) (format byte, payload []byte, err error) {
	if len(stored) == 0 {
		return 0, nil, newError(CodeCorrupt, -1, "the stored body is empty")
	}
	switch format = stored[0]; format {
	case formatZlib, formatPlain:
	case 3, 4, 5:
		return 0, nil, newError(CodeUnknownFormat, -1,
			"the stored body has format %d, which is reserved for a later version: read it with that version", format)
	default:
		return 0, nil, newError(CodeUnknownFormat, -1,
			"the stored body has format %d; this version knows 1 and 2", format)
	}
	if len(stored) <= headerLen {
		return 0, nil, newError(CodeCorrupt, -1, "the stored body has %d bytes, too few for any value", len(stored))
	}
	payload = stored[headerLen:]
	want := binary.BigEndian.Uint32(stored[1:headerLen])
	if got := crc32.Checksum(payload, castagnoli); got != want {
		return 0, nil, newError(CodeCorrupt, -1, "the checksum is %08x, the stored bytes have %08x", want, got)
	}
	return format, payload, nil
}
