package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	// ErrFenced is returned when another producer took over the transactional
	// id, or the broker aborted a transaction that stayed open for too long.
	// Close, and start anew from the positions.
	ErrFenced = errors.New("fenced: another producer has taken over the transactional id, or the transaction timed out")

	// ErrRecordRefused is returned when the broker (or the client, for it)
	// refuses a record for what it is: too large, a bad timestamp. Sending it
	// again gives the same answer.
	ErrRecordRefused = errors.New("record refused by the broker")

	// ErrTopicMismatch is returned when a topic that is already there has
	// other settings than cellog needs. The error holds the command that mends
	// it.
	ErrTopicMismatch = errors.New("topic has other settings than cellog needs")

	// ErrUnknownTopic is returned when a topic or partition does not exist.
	ErrUnknownTopic = errors.New("unknown topic or partition")

	// ErrOffsetGone is returned by reads of an offset that the partition does
	// not have (any more, or yet).
	ErrOffsetGone = errors.New("offset is not in the partition")

	// ErrDataLoss is returned when the broker shows that it lost acknowledged
	// records.
	ErrDataLoss = errors.New("the broker lost acknowledged records")

	// ErrClosed is returned by calls on a closed producer or reader.
	ErrClosed = errors.New("kafka client is closed")
)

// convert gives a client's error its mark and keeps its text. Context errors
// pass unchanged.
func convert(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if mark := markOf(err); mark != nil {
		return fmt.Errorf("%w (%v)", mark, err)
	}
	return fmt.Errorf("kafka: %w", err)
}

func markOf(err error) error {
	for _, m := range []error{ErrFenced, ErrRecordRefused, ErrTopicMismatch, ErrUnknownTopic, ErrOffsetGone, ErrDataLoss, ErrClosed} {
		if errors.Is(err, m) {
			return nil // has its mark already
		}
	}
	var loss *kgo.ErrDataLoss
	if errors.As(err, &loss) {
		return ErrDataLoss
	}
	if errors.Is(err, kgo.ErrClientClosed) {
		return ErrClosed
	}
	var ke *kerr.Error
	if !errors.As(err, &ke) {
		return nil
	}
	switch ke {
	case kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.InvalidTxnState,
		kerr.UnknownProducerID, kerr.TransactionAbortable:
		return ErrFenced
	case kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp:
		return ErrRecordRefused
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID:
		return ErrUnknownTopic
	case kerr.OffsetOutOfRange:
		return ErrOffsetGone
	}
	return nil
}
