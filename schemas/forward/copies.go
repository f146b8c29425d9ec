package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
)

// AppendRun appends a run's cells, of which there is at least one. Their Shard
// and Epoch, which they share, are not in it.
func AppendRun(dst []byte, cells []cellog.Cell) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, version), uint64(cells[0].AddedID))
	for i := range cells {
		c := &cells[i]
		dst = binary.BigEndian.AppendUint64(dst, uint64(c.CreatedAt.UnixMicro()))
		dst = appendPut(dst, &cellog.Put{Key: c.Key, Body: c.Body, TraceParent: c.TraceParent})
	}
	return dst
}

// ParseRun reads a run's cells. Their Bodies alias src. The error says where it
// ends early, or that it is of another version.
func ParseRun(src []byte, shard cellog.ShardID, epoch cellog.Epoch) ([]cellog.Cell, error) {
	r := reader{src: src}
	if v := r.take(1); v == nil || v[0] != version {
		return nil, errors.New("a run of copies: not of version 1")
	}
	first := cellog.AddedID(r.uint64())
	var cells []cellog.Cell
	for len(r.src) > 0 {
		created := time.UnixMicro(int64(r.uint64())).UTC()
		p := r.put()
		if r.short {
			break
		}
		cells = append(cells, cellog.Cell{Key: p.Key, Body: p.Body, TraceParent: p.TraceParent, Shard: shard, Epoch: epoch,
			AddedID: first + cellog.AddedID(len(cells)), CreatedAt: created})
	}
	if r.short || len(cells) == 0 {
		return nil, fmt.Errorf("a run of copies: cell %d ends early", len(cells))
	}
	return cells, nil
}
