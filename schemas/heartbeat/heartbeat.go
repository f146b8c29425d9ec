// Package heartbeat is the shape of the records in the heartbeats topic
// (_cellog.heartbeats, one partition): the proof that a cluster's stream flows
// from its master to Kafka. Keys are the clusters' names; values are JSON.
package heartbeat

import (
	"encoding/json"
	"fmt"
	"time"
)

// Beat is one heartbeat.
type Beat struct {
	Cluster string `json:"cluster"`
	// Mark is the mark of the tailer that published it.
	Mark string `json:"tailer_mark"`
	// Beat is the number that the writer on the master gave it, growing; zero
	// is a tailer's own sign of life, which did not come from the master.
	Beat int64 `json:"beat"`
	// WrittenAt is when it was written, by the writer's clock.
	WrittenAt time.Time `json:"written_at"`
	// Tailer is what the tailer says of itself; nil from one that does not.
	Tailer *Tailer `json:"tailer,omitempty"`
}

// MaxReasons is of how many stopped shards a Tailer gives the reason, and
// MaxReason how many bytes of it: a heartbeat must always fit.
const (
	MaxReasons = 16
	MaxReason  = 800
)

// Tailer is what a tailer says of itself, so that whoever reads Kafka needs no
// way to the tailer's own port.
type Tailer struct {
	// State is what it does: starting, catching-up, streaming or paused.
	State string `json:"state"`
	// Node is the server that it reads; empty while it reads none.
	Node string `json:"node,omitempty"`
	// Stopped is how many shards are stopped by an error, Reasons why some of
	// them are, by database name. No reason holds a cell's body.
	Stopped int               `json:"stopped,omitempty"`
	Reasons map[string]string `json:"reasons,omitempty"`
}

// Marshal returns the record value.
func Marshal(b Beat) []byte {
	v, err := json.Marshal(b)
	if err != nil {
		panic(err) // plain fields only
	}
	return v
}

// Unmarshal reads a record value. Unknown fields are let pass: nobody decides
// about cells by a heartbeat.
func Unmarshal(value []byte) (Beat, error) {
	var b Beat
	if err := json.Unmarshal(value, &b); err != nil {
		return b, fmt.Errorf("heartbeat record: %w", err)
	}
	return b, nil
}
