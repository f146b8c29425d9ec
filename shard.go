package cellog

import "github.com/google/uuid"

// ShardOf returns the shard in which a row lives, for ever:
// toPositive(murmur2(canonical lower-case UUID text)) mod shards, which is
// what Kafka's default partitioner computes for the same key. It panics if
// shards is not positive.
func ShardOf(row uuid.UUID, shards int) ShardID {
	var text [36]byte
	encodeUUID(&text, row)
	return ShardID(int(uint32(Murmur2(text[:]))&0x7fffffff) % shards)
}

// PartitionOf returns the partition that carries a shard's cells. partitions
// must divide the number of shards.
func PartitionOf(shard ShardID, partitions int) int32 { return int32(int(shard) % partitions) }

// DefaultPartitions returns the number of partitions that a topic of a
// datastore with so many shards gets: all of them up to MaxPartitions, then
// the largest divisor that is at most MaxPartitions.
func DefaultPartitions(shards int) int {
	if shards <= MaxPartitions {
		return shards
	}
	for p := MaxPartitions; p > 1; p-- {
		if shards%p == 0 {
			return p
		}
	}
	return 1
}

// Murmur2 is the 32-bit hash of Kafka's default partitioner (seed 0x9747b28c;
// org.apache.kafka.common.utils.Utils.murmur2).
func Murmur2(data []byte) int32 {
	const m = 0x5bd1e995
	n := len(data)
	h := uint32(0x9747b28c) ^ uint32(n)
	for len(data) >= 4 {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h *= m
		h ^= k
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return int32(h)
}

// encodeUUID writes the canonical lower-case text without allocating.
func encodeUUID(dst *[36]byte, id uuid.UUID) {
	const hex = "0123456789abcdef"
	j := 0
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst[j] = '-'
			j++
		}
		dst[j], dst[j+1] = hex[b>>4], hex[b&15]
		j += 2
	}
}
