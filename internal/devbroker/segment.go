package devbroker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kfake keeps a partition in segments: BASE.dat holds Kafka record batches one
// after the other, BASE.idx one entry of 15 bytes per batch.
//
//	batch   0 first offset (8)  8 length of what follows (4)  12 leader epoch (4)  16 magic (1)  17 CRC (4)
//	       21 attributes (2)   23 last offset delta (4)  27 first time (8)  35 last time (8)
//	       43 producer id (8)  51 producer epoch (2)     53 first sequence (4)  57 records (4)  61 …
//	entry   0 version (1)  1 low byte of the CRC-32C of the rest (1)  2 leader epoch (4)  6 time (8)  14 in a transaction (1)
const (
	batchHeader   = 61
	entrySize     = 15
	transactional = 0x10
	control       = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// txn names a transaction: the epoch of its producer is its own.
type txn struct {
	producer int64
	epoch    int16
}

// partition is what repair knows of a partition after scan.
type partition struct {
	dir         string
	base        int64 // of the last segment
	next        int64 // offset of the next record
	leaderEpoch int32
	open        map[int64]int16 // producer -> epoch of the transaction without an end
	committed   []txn           // whose commit marker is here
	cut         int64           // bytes that scan cut off
}

// scan reads a partition's batch headers and cuts off what is half-written.
func scan(dir string) (*partition, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var bases []int64
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".dat"); ok {
			if base, err := strconv.ParseInt(name, 10, 64); err == nil {
				bases = append(bases, base)
			}
		}
	}
	slices.Sort(bases)
	p := &partition{dir: dir, base: -1, open: map[int64]int16{}}
	for _, base := range bases {
		if err := p.segment(base); err != nil {
			return nil, fmt.Errorf("segment %s: %w", p.path(base, ".dat"), err)
		}
	}
	return p, nil
}

func (p *partition) path(base int64, ext string) string {
	return filepath.Join(p.dir, strconv.FormatInt(base, 10)+ext)
}

func (p *partition) segment(base int64) error {
	dat, err := os.OpenFile(p.path(base, ".dat"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dat.Close()
	st, err := dat.Stat()
	if err != nil {
		return err
	}
	var entries int64
	switch ist, err := os.Stat(p.path(base, ".idx")); {
	case err == nil:
		entries = ist.Size() / entrySize
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	var head [batchHeader]byte
	pos, n := int64(0), int64(0)
	for n < entries && pos+batchHeader <= st.Size() {
		if _, err := dat.ReadAt(head[:], pos); err != nil {
			return err
		}
		size := 12 + int64(binary.BigEndian.Uint32(head[8:]))
		if size < batchHeader || pos+size > st.Size() {
			break
		}
		if err := p.batch(dat, head[:], pos, size); err != nil {
			return err
		}
		pos += size
		n++
	}
	if n > 0 {
		p.base = base
	}
	if pos < st.Size() {
		p.cut += st.Size() - pos
		if err := dat.Truncate(pos); err != nil {
			return err
		}
	}
	if entries > n || entries == 0 && n == 0 {
		if err := truncateIfThere(p.path(base, ".idx"), n*entrySize); err != nil {
			return err
		}
	}
	return nil
}

func truncateIfThere(path string, size int64) error {
	if err := os.Truncate(path, size); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// batch notes one batch.
func (p *partition) batch(dat io.ReaderAt, head []byte, pos, size int64) error {
	p.next = int64(binary.BigEndian.Uint64(head)) + int64(int32(binary.BigEndian.Uint32(head[23:]))) + 1
	p.leaderEpoch = int32(binary.BigEndian.Uint32(head[12:]))
	attrs := binary.BigEndian.Uint16(head[21:])
	t := txn{int64(binary.BigEndian.Uint64(head[43:])), int16(binary.BigEndian.Uint16(head[51:]))}
	switch {
	case attrs&control != 0:
		raw := make([]byte, size-batchHeader)
		if _, err := dat.ReadAt(raw, pos+batchHeader); err != nil {
			return err
		}
		var rec kmsg.Record
		var key kmsg.ControlRecordKey
		if rec.ReadFrom(raw) == nil && key.ReadFrom(rec.Key) == nil && key.Type == kmsg.ControlRecordKeyTypeCommit {
			p.committed = append(p.committed, t)
		}
		delete(p.open, t.producer)
	case attrs&transactional != 0:
		p.open[t.producer] = t.epoch
	}
	return nil
}

// end writes a transaction's marker behind the last batch.
func (p *partition) end(t txn, commit bool) error {
	raw := marker(t, commit, p.next, p.leaderEpoch, time.Now())
	var entry [entrySize]byte
	entry[0] = 1
	binary.LittleEndian.PutUint32(entry[2:], uint32(p.leaderEpoch))
	binary.LittleEndian.PutUint64(entry[6:], binary.BigEndian.Uint64(raw[35:]))
	entry[1] = byte(crc32.Checksum(entry[2:], castagnoli))
	if err := appendTo(p.path(p.base, ".dat"), raw); err != nil {
		return err
	}
	if err := appendTo(p.path(p.base, ".idx"), entry[:]); err != nil {
		return err
	}
	p.next++
	return nil
}

func marker(t txn, commit bool, offset int64, leaderEpoch int32, now time.Time) []byte {
	key := kmsg.ControlRecordKey{Type: kmsg.ControlRecordKeyTypeAbort}
	if commit {
		key.Type = kmsg.ControlRecordKeyTypeCommit
	}
	value := kmsg.EndTxnMarker{}
	rec := kmsg.Record{Key: key.AppendTo(nil), Value: value.AppendTo(nil)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // its own length takes one byte
	b := kmsg.RecordBatch{
		FirstOffset: offset, PartitionLeaderEpoch: leaderEpoch, Magic: 2, Attributes: control | transactional,
		FirstTimestamp: now.UnixMilli(), MaxTimestamp: now.UnixMilli(),
		ProducerID: t.producer, ProducerEpoch: t.epoch, FirstSequence: -1,
		NumRecords: 1, Records: rec.AppendTo(nil),
	}
	raw := b.AppendTo(nil)
	b.Length = int32(len(raw) - 12)
	b.CRC = int32(crc32.Checksum(raw[21:], castagnoli))
	return b.AppendTo(nil)
}

func appendTo(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}
