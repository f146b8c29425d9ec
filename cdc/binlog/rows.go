package binlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
)

// column is how a table map describes a column: its type and the type's
// measure (a length, or fractional digits).
type column struct {
	name string
	typ  byte
	meta uint16
}

// The layouts that schemas/sqlfiles makes. BINARY(16) says its real type and
// length in the measure.
var (
	entityLayout = []column{
		{"added_id", mysql.MYSQL_TYPE_LONGLONG, 0},
		{"epoch", mysql.MYSQL_TYPE_LONG, 0},
		{"row_key", mysql.MYSQL_TYPE_STRING, uint16(mysql.MYSQL_TYPE_STRING)<<8 | 16},
		{"column_name", mysql.MYSQL_TYPE_VARCHAR, 64},
		{"ref_key", mysql.MYSQL_TYPE_LONGLONG, 0},
		{"body", mysql.MYSQL_TYPE_BLOB, 3},
		{"created_at", mysql.MYSQL_TYPE_DATETIME2, 6},
		{"traceparent", mysql.MYSQL_TYPE_VARCHAR, 55},
	}
	beatLayout = []column{
		{"cluster", mysql.MYSQL_TYPE_VARCHAR, 64},
		{"beat", mysql.MYSQL_TYPE_LONGLONG, 0},
		{"written_at", mysql.MYSQL_TYPE_DATETIME2, 6},
	}
)

func checkLayout(t *replication.TableMapEvent, want []column) error {
	if int(t.ColumnCount) != len(want) {
		return fmt.Errorf("table has %d columns, want %d", t.ColumnCount, len(want))
	}
	for i, c := range want {
		if t.ColumnType[i] != c.typ || t.ColumnMeta[i] != c.meta {
			return fmt.Errorf("column %d (%s) has type %d and measure %d in the binlog, want %d and %d",
				i+1, c.name, t.ColumnType[i], t.ColumnMeta[i], c.typ, c.meta)
		}
	}
	return nil
}

// errImage is returned when a row event does not hold all columns.
var errImage = errors.New("row event without all columns: binlog_row_image must be FULL")

func fullImage(bitmap []byte, columns int) bool {
	for i := range columns {
		if bitmap[i/8]&(1<<(i%8)) == 0 {
			return false
		}
	}
	return true
}

var errShort = errors.New("row event ends within a row")

// cursor reads a row event's packed values; after the first short read all
// values are zero and short is set.
type cursor struct {
	data  []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if n > len(c.data) {
		c.short, c.data = true, nil
		return nil
	}
	b := c.data[:n:n]
	c.data = c.data[n:]
	return b
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) i64() int64 {
	if b := c.take(8); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (c *cursor) i32() int32 {
	if b := c.take(4); b != nil {
		return int32(binary.LittleEndian.Uint32(b))
	}
	return 0
}

// packed reads an integer in the protocol's length-encoded form.
func (c *cursor) packed() (v uint64) {
	first := c.u8()
	if first < 0xfb {
		return uint64(first)
	}
	n := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[first]
	for i, b := range c.take(n) {
		v |= uint64(b) << (8 * i)
	}
	c.short = c.short || n == 0
	return v
}

// short8 reads a value of at most 255 bytes after its length.
func (c *cursor) short8() []byte { return c.take(int(c.u8())) }

// blob3 reads a MEDIUMBLOB.
func (c *cursor) blob3() []byte {
	b := c.take(3)
	if b == nil {
		return nil
	}
	return c.take(int(b[0]) | int(b[1])<<8 | int(b[2])<<16)
}

// datetime6 reads a DATETIME(6): 40 bits (sign, year*13+month, day, hour,
// minute, second) and 24 bits of microseconds, big endian.
func (c *cursor) datetime6() time.Time {
	b := c.take(8)
	if b == nil {
		return time.Time{}
	}
	v := uint64(b[0])<<32 | uint64(b[1])<<24 | uint64(b[2])<<16 | uint64(b[3])<<8 | uint64(b[4])
	v &^= 1 << 39
	micros := int(b[5])<<16 | int(b[6])<<8 | int(b[7])
	ymd, hms := v>>17, v&(1<<17-1)
	ym := int(ymd >> 5)
	return time.Date(ym/13, time.Month(ym%13), int(ymd&31),
		int(hms>>12), int(hms>>6&63), int(hms&63), micros*1000, time.UTC)
}

// entityRow reads one inserted row; the body points into the event.
func (s *stream) entityRow(c *cursor, r *cdc.Row) error {
	nulls := c.u8()
	if nulls&^0x80 != 0 {
		return fmt.Errorf("row with NULL where no NULL may be (bitmap %08b)", nulls)
	}
	r.AddedID = cellog.AddedID(c.i64())
	r.Epoch = cellog.Epoch(c.i32())
	// The server cuts a BINARY's trailing zero bytes off.
	key := c.short8()
	if len(key) > len(r.RowKey) {
		return fmt.Errorf("added_id %d: row_key of %d bytes", r.AddedID, len(key))
	}
	copy(r.RowKey[:], key)
	r.Column = s.intern(c.short8())
	r.Ref = cellog.RefKey(c.i64())
	r.Body = c.blob3()
	r.CreatedAt = c.datetime6()
	if nulls&0x80 == 0 {
		r.TraceParent = string(c.short8())
	}
	if c.short {
		return errShort
	}
	return nil
}

func (s *stream) beatRow(c *cursor) (cdc.Beat, error) {
	const used = 1<<3 - 1 // the servers set the bits of columns that are not there
	if nulls := c.u8() & used; nulls != 0 {
		return cdc.Beat{}, fmt.Errorf("heartbeat with NULL (bitmap %03b)", nulls)
	}
	b := cdc.Beat{Cluster: string(c.short8()), Beat: c.i64(), WrittenAt: c.datetime6()}
	if c.short {
		return b, errShort
	}
	return b, nil
}

// intern returns one string for equal bytes: there are few column names.
func (s *stream) intern(b []byte) string {
	if v, ok := s.names[string(b)]; ok {
		return v
	}
	if len(s.names) >= 4096 {
		clear(s.names)
	}
	v := string(b)
	s.names[v] = v
	return v
}
