package binlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/cellog/cellog/cdc"
)

const (
	headerSize = replication.EventHeaderSize
	// maxEvent is the most that one event may hold, packed or not: the servers'
	// own limit.
	maxEvent = 1 << 30
	// maxWindow is how far back a compressed transaction may refer: what the
	// highest level (22) uses. The default level needs 2 MiB.
	maxWindow = 128 << 20
	// tellEvery is after how many bytes of an unfinished transaction the tailer
	// is told how far it was read.
	tellEvery = 16 << 20
)

// damaged marks an event that cannot be read: what it holds is in the entity
// tables too.
func damaged(typ replication.EventType, size int, why error) error {
	return fmt.Errorf("binlog: a %s of %d bytes cannot be read: %w: %w", typ, size, why, cdc.ErrPositionLost)
}

// artificial marks an event that the server made up for this connection; it may
// come without a checksum.
const artificial = 0x20

// plain returns an event without its checksum, and checks it. MySQL sends it,
// although the client library asks for none; MariaDB does not, but compares it
// itself if master_verify_checksum is on. Events within a compressed transaction
// have none.
func (s *stream) plain(e *replication.BinlogEvent) ([]byte, error) {
	raw := e.RawData
	if f, ok := e.Event.(*replication.FormatDescriptionEvent); ok {
		s.checksum = 0
		if f.ChecksumAlgorithm == replication.BINLOG_CHECKSUM_ALG_CRC32 {
			s.checksum = replication.BinlogChecksumLength
		}
		raw = bytes.Clone(raw)
		raw[len(raw)-replication.BinlogChecksumLength-1] = byte(replication.BINLOG_CHECKSUM_ALG_OFF)
		return raw, nil
	}
	if s.checksum > 0 && len(raw) >= headerSize+s.checksum {
		typ, sum := replication.EventType(raw[4]), binary.LittleEndian.Uint32(raw[len(raw)-s.checksum:])
		raw = raw[:len(raw)-s.checksum]
		if e.Header.Flags&artificial == 0 && !heartbeat(typ) && crc32.ChecksumIEEE(raw) != sum {
			return nil, damaged(typ, len(raw), errChecksum)
		}
		binary.LittleEndian.PutUint32(raw[9:], uint32(len(raw)))
	}
	return raw, nil
}

// packet takes one event, without a checksum. What the stream does not need,
// such as annotations, is not looked at.
func (s *stream) packet(raw []byte) error {
	typ := replication.EventType(raw[4])
	if s.cur != nil {
		if s.read += int64(len(raw)); s.read >= s.told+tellEvery {
			s.told = s.read
			if err := s.handle(&cdc.Transaction{Reading: s.read}); err != nil {
				return err
			}
		}
	}
	body := raw[headerSize:]
	switch typ {
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		database, text, err := readQuery(body, typ == replication.MARIADB_QUERY_COMPRESSED_EVENT)
		if err != nil {
			return damaged(typ, len(raw), err)
		}
		return s.query(database, text)
	case replication.BEGIN_LOAD_QUERY_EVENT, replication.EXECUTE_LOAD_QUERY_EVENT:
		s.statement() // LOAD DATA as a statement
		return nil
	case replication.XID_EVENT:
		return s.commit()
	case replication.XA_PREPARE_LOG_EVENT:
		return s.prepared()
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return s.payload(body)
	case replication.FORMAT_DESCRIPTION_EVENT, replication.TABLE_MAP_EVENT,
		replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT, replication.MARIADB_GTID_EVENT,
		replication.WRITE_ROWS_EVENTv0, replication.UPDATE_ROWS_EVENTv0, replication.DELETE_ROWS_EVENTv0,
		replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1,
		replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1,
		replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1, replication.PARTIAL_UPDATE_ROWS_EVENT:
	default:
		return nil
	}
	e := s.parse(raw)
	if e == nil {
		return damaged(typ, len(raw), errMalformed)
	}
	switch ev := e.Event.(type) {
	case *replication.GTIDEvent:
		return s.mysqlGTID(ev)
	case *replication.GtidTaggedLogEvent:
		return s.mysqlGTID(&ev.GTIDEvent)
	case *replication.MariadbGTIDEvent:
		return s.mariadbGTID(ev)
	case *replication.RowsEvent:
		return s.rows(typ, ev)
	}
	return nil
}

// parse returns nil if an event cannot be parsed: the library's errors hold the
// event's bytes, and it panics where an event ends too early.
func (s *stream) parse(raw []byte) (e *replication.BinlogEvent) {
	defer func() {
		if recover() != nil {
			e = nil
		}
	}()
	e, err := s.parser.Parse(raw)
	if err != nil {
		return nil
	}
	return e
}

// decodeRows stands in for the library's decoding of rows: it reads the header
// only, and leaves the rest to rows.
func (s *stream) decodeRows(e *replication.RowsEvent, data []byte) error {
	pos, err := e.DecodeHeader(data)
	if err == nil {
		s.rowData = data[pos:]
	}
	return err
}

var (
	errMalformed = errors.New("malformed")
	errChecksum  = errors.New("its checksum does not match")
)

// heartbeat says that an event is the connection's own, and in no binlog.
func heartbeat(typ replication.EventType) bool {
	return typ == replication.HEARTBEAT_EVENT || typ == replication.HEARTBEAT_LOG_EVENT_V2
}

// readQuery returns a query event's default database and its text.
func readQuery(b []byte, packed bool) (database string, text []byte, err error) {
	if len(b) < 13 {
		return "", nil, errMalformed
	}
	// thread 4, seconds 4, length of the database 1, error 2, length of the
	// status variables 2; then these, the database, a zero, the text
	name := 13 + int(binary.LittleEndian.Uint16(b[11:]))
	end := name + int(b[8])
	if end+1 > len(b) {
		return "", nil, errMalformed
	}
	database, text = string(b[name:end]), b[end+1:]
	if packed {
		text, err = unpack(text)
	}
	return database, text, err
}

// unpack inflates what MariaDB's log_bin_compress packs: a byte that says how
// long the length is (bits 0 to 2) and with what it is packed (4 to 6, 0 is
// zlib), the length, big endian, and the data. It does not believe a length
// that zlib, which saves 1031 bytes of 1032 at best, could not have packed.
func unpack(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0]>>4&7 != 0 || len(b) < 1+int(b[0]&7) {
		return nil, errMalformed
	}
	size := uint64(0)
	n := 1 + int(b[0]&7)
	for _, v := range b[1:n] {
		size = size<<8 | uint64(v)
	}
	if size > maxEvent || size > 1032*uint64(len(b)) {
		return nil, fmt.Errorf("%w: %d bytes are said to hold %d", errMalformed, len(b), size)
	}
	r, err := zlib.NewReader(bytes.NewReader(b[n:]))
	if err != nil {
		return nil, err
	}
	out := make([]byte, size)
	_, err = io.ReadFull(r, out)
	return out, err
}

// payload takes a compressed transaction of MySQL, event by event: of what is
// unpacked, no more than one event and the window is in memory.
func (s *stream) payload(b []byte) error {
	typ, packed, err := readPayload(b)
	fail := func(err error) error { return damaged(replication.TRANSACTION_PAYLOAD_EVENT, len(b), err) }
	if err != nil {
		return fail(err)
	}
	var r io.Reader = bytes.NewReader(packed)
	switch {
	case typ == replication.NONE:
	case typ != replication.ZSTD:
		return fail(fmt.Errorf("unknown compression %d", typ))
	case s.zstd == nil:
		// One goroutine: this one. Low memory is the default.
		if s.zstd, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
			return fail(err)
		}
		r = s.zstd
	default:
		if err := s.zstd.Reset(r); err != nil {
			return fail(err)
		}
		r = s.zstd
	}
	for {
		var head [headerSize]byte
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			break
		} else if err != nil {
			return fail(err)
		}
		size := binary.LittleEndian.Uint32(head[9:])
		if size < headerSize || size > maxEvent {
			return fail(fmt.Errorf("%w: an event of %d bytes within", errMalformed, size))
		}
		raw := make([]byte, size)
		copy(raw, head[:])
		if _, err := io.ReadFull(r, raw[headerSize:]); err != nil {
			return fail(err)
		}
		if replication.EventType(raw[4]) == replication.TRANSACTION_PAYLOAD_EVENT {
			return fail(fmt.Errorf("%w: one within another", errMalformed))
		}
		if err := s.packet(raw); err != nil {
			return err
		}
	}
	if s.zstd != nil {
		return s.zstd.Reset(nil) // lets go of the payload
	}
	return nil
}

// readPayload returns how a payload is packed, and the payload. Before it come
// fields: a type, a length, and a value, each a packed integer.
func readPayload(b []byte) (typ uint64, payload []byte, err error) {
	c := cursor{data: b}
	typ = replication.NONE
	for !c.short {
		field := c.packed()
		if field == replication.OTW_PAYLOAD_HEADER_END_MARK {
			break
		}
		value := cursor{data: c.take(int(min(c.packed(), maxEvent)))}
		if field == replication.OTW_PAYLOAD_COMPRESSION_TYPE_FIELD {
			typ = value.packed()
			c.short = c.short || value.short
		}
	}
	if c.short {
		return 0, nil, errMalformed
	}
	return typ, c.data, nil
}

// close lets go of what is held between events.
func (s *stream) close() {
	if s.zstd != nil {
		s.zstd.Close()
	}
}
