// Package position is the shape of the records in the positions topics
// (_cellog.positions.<cluster>, one partition, compacted): what a storage
// cluster's tailer has made final, and who is the cluster's master.
//
// Records are written only under the cluster's tailer's transactional id, in
// the same Kafka transaction as the cells they speak of. Keys are
// "shard/<datastore>/<n>" and "cluster"; values are JSON.
package position

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
)

// ClusterKey is the key of the record that holds a Cluster.
const ClusterKey = "cluster"

// Shard says how far a shard's log is final. The zero value is a shard of
// which nothing was published yet.
type Shard struct {
	// Owner is the cluster that owns the shard: another one than the topic's
	// once the shard was handed over. Of all records of a shard in all topics
	// the one of the highest epoch counts; one of epoch 0 only tells the
	// topic's cluster that the shard is not its.
	Owner string `json:"owner"`
	// Epoch is the shard's epoch at its last published cell.
	Epoch cellog.Epoch `json:"epoch"`
	// First is the first added_id of that epoch.
	First cellog.AddedID `json:"first_added_id"`
	// Last is the last published added_id; all of 1 … Last are final.
	Last cellog.AddedID `json:"last_added_id"`
	// Columns has an entry per column that the shard has cells of, and one for
	// the merged topic under the name Merged if the datastore has one.
	Columns map[string]Column `json:"columns"`
}

// Merged is the entry of the merged topic among a shard's columns; no column
// can have this name. Its sequence is the added_id.
const Merged = "_all"

// Column says where a shard's last record of a column is.
type Column struct {
	// Sequence is that record's ce_sequence, so the number of the column's
	// cells in the shard.
	Sequence cellog.Sequence `json:"sequence"`
	// Offset is that record's offset in its partition of the column's topic.
	Offset int64 `json:"offset"`
	// AddedID is that record's added_id.
	AddedID cellog.AddedID `json:"added_id"`
}

// The states of a cluster.
const (
	Claimed = "claimed"
	Open    = "open"
)

// Cluster says who is master of a storage cluster, and who tails it.
type Cluster struct {
	Term  cellog.Term `json:"term"`
	State string      `json:"state"`
	// Node and ServerUUID name the master that the term opened.
	Node       string `json:"node"`
	ServerUUID string `json:"server_uuid"`
	// Alone says that no node followed the master when it was opened.
	Alone bool `json:"alone,omitempty"`
	// ClaimMark is the claimant's own random mark, empty if none.
	ClaimMark string `json:"claim_mark,omitempty"`
	// TailerMark is the running tailer's own random mark, empty if none.
	TailerMark string `json:"tailer_mark,omitempty"`
	// GTID is a hint where in the binlog to go on; never trusted alone.
	GTID string `json:"gtid,omitempty"`
	// UpdatedAt is when the record was written, by the writer's clock.
	UpdatedAt time.Time `json:"updated_at"`
}

// ShardKey returns the key of a shard's record.
func ShardKey(datastore string, shard cellog.ShardID) string {
	return "shard/" + datastore + "/" + strconv.Itoa(int(shard))
}

// ParseShardKey reads what ShardKey writes; ok is false for any other key.
func ParseShardKey(key string) (datastore string, shard cellog.ShardID, ok bool) {
	rest, found := strings.CutPrefix(key, "shard/")
	if !found {
		return "", 0, false
	}
	ds, n, found := strings.Cut(rest, "/")
	if !found || cellog.CheckDatastore(ds) != nil {
		return "", 0, false
	}
	i, err := strconv.Atoi(n)
	if err != nil || i < 0 || strconv.Itoa(i) != n {
		return "", 0, false
	}
	return ds, cellog.ShardID(i), true
}

// Marshal returns a Shard's or Cluster's record value.
func Marshal[T Shard | Cluster](v T) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // both types consist of plain fields only
	}
	return b
}

// Unmarshal reads a record value strictly: an unknown field, or anything after
// the value, is an error, because a newer writer may have meant something by
// it.
func Unmarshal[T Shard | Cluster](value []byte) (T, error) {
	var v T
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, fmt.Errorf("position record: %w", err)
	}
	if d.More() {
		return v, fmt.Errorf("position record: %d bytes after the value", len(value)-int(d.InputOffset()))
	}
	return v, nil
}
