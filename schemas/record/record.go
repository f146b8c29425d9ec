package record

import (
	"slices"
	"strconv"
	"time"

	"github.com/cellog/cellog"
)

// The header names.
const (
	HeaderContentType = "content-type"
	HeaderSpecVersion = "ce_specversion"
	HeaderID          = "ce_id"
	HeaderSource      = "ce_source"
	HeaderType        = "ce_type"
	HeaderSubject     = "ce_subject"
	HeaderTime        = "ce_time"
	HeaderSequence    = "ce_sequence"
	HeaderEpoch       = "ce_epoch"
	HeaderTraceParent = "traceparent"
)

// The header values that never vary.
const (
	SpecVersion = "1.0"
	Type        = "cellog.cell.v1"
)

const sourcePrefix = "/cellog/"

// timeLayout is RFC 3339 in UTC with six digits, so that texts sort as times.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// Header is one header of a Kafka record.
type Header struct {
	Key   string
	Value []byte
}

// Record is a Kafka record, without topic, partition and offset.
type Record struct {
	// Key is the row key's text.
	Key []byte
	// Value is the body, in the Form that the content-type says.
	Value []byte
	// Time is created_at.
	Time    time.Time
	Headers []Header
}

// Encode returns a cell's record with the form JSON. c.Body must be its JSON
// text and c.Sequence must be set. The record's Value is c.Body itself; all
// else is new memory.
func Encode(c *cellog.Cell) Record { return NewEncoder(c.Datastore).Encode(c, JSON, nil) }

// Encoder makes the records of one datastore. It shares what their headers
// have in common, and is safe for concurrent use.
type Encoder struct {
	datastore string
	source    []byte
}

// NewEncoder returns an Encoder of a datastore's cells.
func NewEncoder(datastore string) *Encoder {
	return &Encoder{datastore: datastore, source: []byte(sourcePrefix + datastore)}
}

var (
	specVersionValue = []byte(SpecVersion)
	typeValue        = []byte(Type)
)

// MaxHeaders is how many headers a record has at most.
const MaxHeaders = 10

// Encode is the package's Encode for a cell of the Encoder's datastore, which
// takes the place of c.Datastore, and whose body is a value of a form, as
// AppendValue returned both. The record's headers are appended to headers, whose
// memory they use. The values of the unvarying ones are shared by all records:
// they must not be written to.
func (e *Encoder) Encode(c *cellog.Cell, form Form, headers []Header) Record {
	// One buffer holds the key and the varying values. 36 + 31+1+4+1+19 +
	// 36+1+64+1+20 + 27 + 19 + 10 is the longest without traceparent.
	buf := make([]byte, 0, 96+len(e.datastore)+len(c.Column)+3*20+len(timeLayout)+len(c.TraceParent)+16)
	from := 0
	cut := func() []byte {
		v := buf[from:len(buf):len(buf)]
		from = len(buf)
		return v
	}
	r := Record{Value: c.Body, Time: c.CreatedAt, Headers: slices.Grow(headers, MaxHeaders)}

	buf = appendUUID(buf, c.Row)
	r.Key = cut()

	buf = append(append(buf, e.datastore...), '/')
	buf = append(strconv.AppendInt(buf, int64(c.Shard), 10), '/')
	buf = strconv.AppendInt(buf, int64(c.AddedID), 10)
	id := cut()

	buf = append(append(buf, r.Key...), '/')
	buf = append(append(buf, c.Column...), '/')
	buf = strconv.AppendInt(buf, int64(c.Ref), 10)
	subject := cut()

	buf = c.CreatedAt.UTC().AppendFormat(buf, timeLayout)
	at := cut()
	buf = strconv.AppendInt(buf, int64(c.Sequence), 10)
	sequence := cut()
	buf = strconv.AppendInt(buf, int64(c.Epoch), 10)
	epoch := cut()

	r.Headers = append(r.Headers,
		Header{HeaderContentType, contentTypes[form]},
		Header{HeaderSpecVersion, specVersionValue},
		Header{HeaderID, id},
		Header{HeaderSource, e.source},
		Header{HeaderType, typeValue},
		Header{HeaderSubject, subject},
		Header{HeaderTime, at},
		Header{HeaderSequence, sequence},
		Header{HeaderEpoch, epoch},
	)
	if c.TraceParent != "" {
		buf = append(buf, c.TraceParent...)
		r.Headers = append(r.Headers, Header{HeaderTraceParent, cut()})
	}
	return r
}

func appendUUID(dst []byte, id [16]byte) []byte {
	const hex = "0123456789abcdef"
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hex[b>>4], hex[b&15])
	}
	return dst
}
