package feed

import (
	"encoding/json"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
)

// marks says, per column and shard of a partition, the number of the last cell
// seen. It travels as metadata of the committed offset, as JSON:
//
//	{"v":1,"gen":7,"whole":true,"marks":{"BASE":{"3":120,"19":4}}}
//
// gen is the partition's generation, the fencing token. whole says that a
// shard which is not there has no cell yet; otherwise the first one seen is
// believed.
type marks struct {
	Version    int                                           `json:"v"`
	Generation int64                                         `json:"gen"`
	Whole      bool                                          `json:"whole,omitempty"`
	Marks      map[string]map[cellog.ShardID]cellog.Sequence `json:"marks,omitempty"`
}

const marksVersion = 1

// parseMarks reads metadata; anything that is not ours gives empty marks: the
// offset was committed by another tool.
func parseMarks(metadata string) marks {
	var m marks
	if json.Unmarshal([]byte(metadata), &m) != nil || m.Version != marksVersion {
		return marks{Version: marksVersion}
	}
	return m
}

// String returns the metadata. What would be too long loses its marks: after
// a restart the first sequence of each shard is then believed.
func (m *marks) String() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // plain maps and numbers
	}
	if len(b) > kafka.MaxMetadata {
		short := marks{Version: m.Version, Generation: m.Generation}
		return short.String()
	}
	return string(b)
}

// last returns the number of the last cell; known is false where the next one
// is to be believed.
func (m *marks) last(shard cellog.ShardID, column string) (seq cellog.Sequence, known bool) {
	seq, known = m.Marks[column][shard]
	return seq, known || m.Whole
}

func (m *marks) set(shard cellog.ShardID, column string, seq cellog.Sequence) {
	if m.Marks == nil {
		m.Marks = make(map[string]map[cellog.ShardID]cellog.Sequence)
	}
	if m.Marks[column] == nil {
		m.Marks[column] = make(map[cellog.ShardID]cellog.Sequence)
	}
	m.Marks[column][shard] = seq
}

func (m *marks) clone() marks {
	c := *m
	c.Marks = make(map[string]map[cellog.ShardID]cellog.Sequence, len(m.Marks))
	for column, shards := range m.Marks {
		c.Marks[column] = make(map[cellog.ShardID]cellog.Sequence, len(shards))
		for shard, seq := range shards {
			c.Marks[column][shard] = seq
		}
	}
	return c
}
