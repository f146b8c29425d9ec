package cellog

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/google/uuid"
)

// MaxShards is the largest number of shards of a datastore: a shard's number
// has four digits in its database name.
const MaxShards = 10000

// MaxPartitions is the largest number of partitions a topic gets unless it is
// set by hand.
const MaxPartitions = 256

var (
	datastoreName = regexp.MustCompile(`^[a-z][a-z0-9]{0,30}$`)
	columnName    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)
	shardDatabase = regexp.MustCompile(`^([a-z][a-z0-9]{0,30})_([0-9]{4})$`)
)

// CheckDatastore returns an error unless name is a legal datastore name.
func CheckDatastore(name string) error {
	if !datastoreName.MatchString(name) {
		return fmt.Errorf("datastore %.40q: want a lower-case letter and up to 30 lower-case letters or digits", name)
	}
	return nil
}

// CheckColumn returns an error unless name is a legal column name.
func CheckColumn(name string) error {
	if !columnName.MatchString(name) {
		return fmt.Errorf("column %.80q: want a letter and up to 63 letters, digits or underscores", name)
	}
	return nil
}

// CheckShards returns an error unless n is a legal number of shards.
func CheckShards(n int) error {
	if n < 1 || n > MaxShards {
		return fmt.Errorf("shards %d: want 1 to %d", n, MaxShards)
	}
	return nil
}

// ParseRowKey reads a UUID in its 36-character form, in either case; other
// spellings of UUIDs (braces, urn:, no hyphens) are refused.
func ParseRowKey(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.UUID{}, fmt.Errorf("row_key %.80q: want a UUID of 36 characters, such as 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77", s)
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("row_key %.80q: want a UUID of 36 characters, such as 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77", s)
	}
	return id, nil
}

// ParseRefKey reads a signed decimal 64-bit integer without spaces, plus sign
// or leading zeros.
func ParseRefKey(s string) (RefKey, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("ref_key %.80q: want an integer from -9223372036854775808 to 9223372036854775807 in its shortest form", s)
	}
	return RefKey(n), nil
}

// DatabaseName returns the name of a shard's MySQL database, such as
// trips_0007.
func DatabaseName(datastore string, shard ShardID) string {
	return fmt.Sprintf("%s_%04d", datastore, int(shard))
}

// ParseDatabaseName reads what DatabaseName writes; ok is false for any other
// database.
func ParseDatabaseName(name string) (datastore string, shard ShardID, ok bool) {
	m := shardDatabase.FindStringSubmatch(name)
	if m == nil {
		return "", 0, false
	}
	n, err := strconv.Atoi(m[2])
	if err != nil {
		return "", 0, false
	}
	return m[1], ShardID(n), true
}

// TopicName returns the Kafka topic of a datastore's column.
func TopicName(prefix, datastore, column string) string {
	return prefix + datastore + "." + column
}

// MergedTopicName returns the Kafka topic that carries every column of a
// datastore. Columns never start with an underscore, so it cannot collide.
func MergedTopicName(prefix, datastore string) string { return prefix + datastore + "._all" }

// PositionsTopicName returns the topic in which a storage cluster's tailer
// keeps its positions.
func PositionsTopicName(prefix, cluster string) string {
	return prefix + "_cellog.positions." + cluster
}

// HeartbeatsTopicName returns the topic of the heartbeats of all clusters.
func HeartbeatsTopicName(prefix string) string { return prefix + "_cellog.heartbeats" }

// ErrPartitions is returned by CheckPartitions.
var ErrPartitions = errors.New("the number of partitions must divide the number of shards")

// CheckPartitions returns ErrPartitions, with the numbers, unless partitions
// divides shards: only then is a shard within one partition.
func CheckPartitions(partitions, shards int) error {
	if partitions < 1 || shards%partitions != 0 {
		return fmt.Errorf("partitions %d, shards %d: %w", partitions, shards, ErrPartitions)
	}
	return nil
}
