package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog/schemas/body"
)

// mustHoldCell fails the test if the first record at a place does not hold the
// cell: a subject that writes something else is no rival. It returns the bytes
// of its key, value and headers.
func mustHoldCell(tb testing.TB, w *world, s *subject, at place) (key, value, headers int) {
	tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.broker.Addrs()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{at.topic: {at.partition: kgo.NewOffset().AtStart()}}), kgo.FetchMaxPartitionBytes(1<<20))
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	fs := cl.PollRecords(ctx, 1)
	if err := fs.Err(); err != nil || fs.NumRecords() == 0 {
		tb.Fatalf("%s: its first record: %v", s.name, err)
	}
	r := fs.Records()[0]
	if err := holdsCell(s, r.Value); err != nil {
		tb.Fatalf("%s: its first record holds no cell: %v", s.name, err)
	}
	for _, h := range r.Headers {
		headers += len(h.Key) + len(h.Value)
	}
	return len(r.Key), len(r.Value), headers
}

// holdsCell says whether a record's value is that of a trip, in the form that
// the subject writes.
func holdsCell(s *subject, value []byte) error {
	text, stored := value, value
	switch {
	case s.value != "" && s.value != "json" && s.value != "stored":
		if !bytes.Contains(value, []byte("driver_partner_uuid")) { // MessagePack keeps text as it is
			return errors.New("it is no trip")
		}
		return nil
	case s.debezium == &debeziumDefault:
		var event struct{ After struct{ Body []byte } }
		if err := json.Unmarshal(value, &event); err != nil {
			return errors.New("it is no JSON")
		}
		stored = event.After.Body
	}
	if s.value != "json" {
		var err error
		if text, err = body.AppendJSON(nil, stored, 8<<20); err != nil {
			return fmt.Errorf("no stored body: %w", err)
		}
	}
	if !json.Valid(text) || !bytes.Contains(text, []byte(`"driver_partner_uuid"`)) {
		return errors.New("it is no trip")
	}
	return nil
}
