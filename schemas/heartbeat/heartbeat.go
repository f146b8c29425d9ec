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
