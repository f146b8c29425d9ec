package indexer

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Type is what a field's values are. Which JSON values each takes:
//
//	uuid      a string of 36 characters, in either case
//	string    a string of at most MaxString bytes
//	int64     a number equal to an integer that fits (1, 1.0 and 10e-1 are one
//	          value: a body may be stored with any of them)
//	decimal   a number, or a string that holds one, that needs at most 28
//	          digits before and 10 after the point: it is kept exactly
//	float64   a number; it is rounded to the nearest float64
//	bool      true or false
//	datetime  a string: RFC 3339 with any offset, with T or a space, or the
//	          same without an offset, which means UTC; years 1000 to 9999,
//	          cut (not rounded) to microseconds
//
// null and an absent member are null. Anything else is a mismatch: null too,
// and counted.
type Type int

// The types of fields.
const (
	UUID Type = iota + 1
	String
	Int64
	Decimal
	Float64
	Bool
	DateTime
)

var typeNames = map[string]Type{
	"uuid": UUID, "string": String, "int64": Int64, "decimal": Decimal,
	"float64": Float64, "bool": Bool, "datetime": DateTime,
}

// String returns the type's name in a definition.
func (t Type) String() string {
	for name, typ := range typeNames {
		if typ == t {
			return name
		}
	}
	return "type(" + strconv.Itoa(int(t)) + ")"
}

// MaxString is the length in bytes of the longest string that an index keeps;
// a longer one is a mismatch. It is part of the shard field's key, for which
// InnoDB allows 3,072 bytes.
const MaxString = 1024

// Value is a field's value in its canonical form: two are the same if ==. The
// zero Value is null.
type Value struct {
	typ Type
	num int64  // int64, bool (0, 1), datetime (µs since 1970 UTC), float64 (bits)
	str string // uuid (16 bytes), string, decimal (canonical text)
}

// Null says whether there is no value.
func (v Value) Null() bool { return v.typ == 0 }

// errMismatch marks a text or JSON value that is not of the field's type.
var errMismatch = errors.New("not of the field's type")

// Exported ways to make values, for adapters that read them from a database.

// UUIDValue returns a uuid.
func UUIDValue(id uuid.UUID) Value { return Value{typ: UUID, str: string(id[:])} }

// StringValue returns a string.
func StringValue(s string) Value { return Value{typ: String, str: s} }

// Int64Value returns an int64.
func Int64Value(n int64) Value { return Value{typ: Int64, num: n} }

// Float64Value returns a float64; -0 is 0.
func Float64Value(f float64) Value {
	return Value{typ: Float64, num: int64(math.Float64bits(f + 0))}
}

// BoolValue returns a bool.
func BoolValue(b bool) Value {
	if b {
		return Value{typ: Bool, num: 1}
	}
	return Value{typ: Bool}
}

// DateTimeValue returns a datetime, cut to microseconds.
func DateTimeValue(t time.Time) Value { return Value{typ: DateTime, num: t.UnixMicro()} }

// Parse reads a value of type t from the text that Text writes, or from any
// other spelling that t allows: it is how query parameters are read.
func Parse(t Type, text string) (Value, error) {
	switch t {
	case UUID:
		id, err := cellog.ParseRowKey(text)
		if err != nil {
			return Value{}, errMismatch
		}
		return UUIDValue(id), nil
	case String:
		if len(text) > MaxString || !utf8.ValidString(text) {
			return Value{}, errMismatch
		}
		return StringValue(text), nil
	case Int64:
		return parseInt64(text)
	case Decimal:
		return parseDecimal(text)
	case Float64:
		return parseFloat64(text)
	case Bool:
		switch text {
		case "true":
			return BoolValue(true), nil
		case "false":
			return BoolValue(false), nil
		}
	case DateTime:
		return parseDateTime(text)
	}
	return Value{}, errMismatch
}

func parseInt64(text string) (Value, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text {
		return Int64Value(n), nil
	}
	d, ok := cutNumber(text)
	if !ok {
		return Value{}, errMismatch
	}
	whole, ok := d.plain(19, 0)
	if !ok {
		return Value{}, errMismatch
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return Value{}, errMismatch
	}
	return Int64Value(n), nil
}

func parseFloat64(text string) (Value, error) {
	if _, ok := cutNumber(text); !ok { // refuses NaN, Inf, hexadecimals
		return Value{}, errMismatch
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return Value{}, errMismatch
	}
	return Float64Value(f), nil
}

// The years that DATETIME promises to keep.
var (
	minDateTime = time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)
	maxDateTime = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
)

func parseDateTime(text string) (Value, error) {
	if len(text) < len("2006-01-02T15:04:05") || len(text) > 64 {
		return Value{}, errMismatch
	}
	buf := []byte(text)
	switch buf[10] {
	case ' ', 't':
		buf[10] = 'T'
	}
	zoned := false
	for _, c := range buf[11:] {
		zoned = zoned || c == 'Z' || c == 'z' || c == '+' || c == '-'
		if c == ',' { // time.Parse takes it for a decimal point
			return Value{}, errMismatch
		}
	}
	switch {
	case !zoned:
		buf = append(buf, 'Z')
	case buf[len(buf)-1] == 'z':
		buf[len(buf)-1] = 'Z'
	}
	if n := len(buf) - len("+23:59"); buf[len(buf)-1] != 'Z' && (n < 0 || string(buf[n+1:n+3]) > "23" || string(buf[n+4:]) > "59") {
		return Value{}, errMismatch // time.Parse knows +24:60
	}
	t, err := time.Parse(time.RFC3339Nano, string(buf))
	if err != nil || t.Before(minDateTime) || t.After(maxDateTime) {
		return Value{}, errMismatch
	}
	return DateTimeValue(t), nil
}

// Text returns the canonical text of a value: what its shard is computed from,
// so it never changes its form. Null has none.
func (v Value) Text() string {
	switch v.typ {
	case UUID:
		return v.uuid().String()
	case Int64:
		return strconv.FormatInt(v.num, 10)
	case Float64:
		return string(appendFloat(nil, v.float()))
	case Bool:
		return strconv.FormatBool(v.num == 1)
	case DateTime:
		return v.time().Format("2006-01-02T15:04:05.000000Z")
	}
	return v.str // string, decimal
}

func (v Value) uuid() (id uuid.UUID) {
	copy(id[:], v.str)
	return id
}

func (v Value) float() float64  { return math.Float64frombits(uint64(v.num)) }
func (v Value) time() time.Time { return time.UnixMicro(v.num).UTC() }

// GoString returns the type and the quoted text, for tests and logs.
func (v Value) GoString() string { return v.typ.String() + " " + strconv.Quote(v.Text()) }

// Shard returns the shard in which entries of a shard field's value live:
// toPositive(murmur2(Text)) mod shards, the placement of rows. Of a uuid it is
// therefore the shard of a row with that key.
func (v Value) Shard(shards int) cellog.ShardID {
	return cellog.ShardID(int(uint32(cellog.Murmur2([]byte(v.Text())))&0x7fffffff) % shards)
}

// AppendJSON appends the value as JSON: numbers as numbers with all their
// digits, datetimes in RFC 3339 with microseconds and Z.
func (v Value) AppendJSON(dst []byte) []byte {
	switch v.typ {
	case 0:
		return append(dst, "null"...)
	case Int64, Float64, Bool, Decimal:
		return append(dst, v.Text()...)
	case String:
		return appendString(dst, v.str)
	}
	dst = append(dst, '"')
	dst = append(dst, v.Text()...)
	return append(dst, '"')
}

// SQL returns the value as an argument of a statement.
func (v Value) SQL() any {
	switch v.typ {
	case 0:
		return nil
	case UUID, String:
		return []byte(v.str)
	case Int64, Bool:
		return v.num
	case Float64:
		return v.float()
	case DateTime:
		return v.time().Format("2006-01-02 15:04:05.000000")
	}
	return v.str // decimal
}

// FromSQL reads a value of type t as a column of the table gives it: the bytes
// of its text, nil for null.
func FromSQL(t Type, raw []byte) (Value, error) {
	if raw == nil {
		return Value{}, nil
	}
	switch t {
	case UUID:
		id, err := uuid.FromBytes(raw)
		if err != nil {
			return Value{}, errMismatch
		}
		return UUIDValue(id), nil
	case String:
		return StringValue(string(raw)), nil
	case Bool:
		return BoolValue(string(raw) != "0"), nil
	}
	return Parse(t, string(raw))
}

func appendFloat(dst []byte, f float64) []byte {
	// The shortest text that reads back as f, in the form of encoding/json.
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // neither NaN nor infinite, by construction
	}
	return append(dst, b...)
}

func appendString(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
