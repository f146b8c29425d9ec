package cellog

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// The vectors are those of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2KafkaVectors(t *testing.T) {
	for in, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := Murmur2([]byte(in)); got != want {
			t.Errorf("Murmur2(%q) = %d, want %d", in, got, want)
		}
	}
}

// Rows were stored by these placements: a changed line here loses data.
func TestShardOfVectors(t *testing.T) {
	for _, v := range []struct {
		row        string
		s16, s4096 ShardID
	}{
		{"00000000-0000-0000-0000-000000000000", 13, 2941},
		{"ffffffff-ffff-ffff-ffff-ffffffffffff", 2, 242},
		{"0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77", 7, 1927},
		{"6ba7b810-9dad-11d1-80b4-00c04fd430c8", 9, 3529},
		{"6BA7B811-9DAD-11D1-80B4-00C04FD430C8", 14, 1294},
	} {
		row := uuid.MustParse(v.row)
		if got := ShardOf(row, 16); got != v.s16 {
			t.Errorf("ShardOf(%s, 16) = %d, want %d", v.row, got, v.s16)
		}
		if got := ShardOf(row, 4096); got != v.s4096 {
			t.Errorf("ShardOf(%s, 4096) = %d, want %d", v.row, got, v.s4096)
		}
		text := strings.ToLower(v.row)
		if got, want := ShardOf(row, 4096), ShardID(int(uint32(Murmur2([]byte(text)))&0x7fffffff)%4096); got != want {
			t.Errorf("ShardOf(%s) = %d, but the text hashes to %d", v.row, got, want)
		}
	}
}

func TestDefaultPartitions(t *testing.T) {
	for shards, want := range map[int]int{1: 1, 16: 16, 256: 256, 257: 1, 512: 256, 300: 150, 4096: 256, 10000: 250} {
		if got := DefaultPartitions(shards); got != want {
			t.Errorf("DefaultPartitions(%d) = %d, want %d", shards, got, want)
		}
		if err := CheckPartitions(want, shards); err != nil {
			t.Errorf("CheckPartitions(%d, %d): %v", want, shards, err)
		}
	}
	for _, bad := range [][2]int{{0, 16}, {-1, 16}, {3, 16}, {32, 16}} {
		if err := CheckPartitions(bad[0], bad[1]); err == nil {
			t.Errorf("CheckPartitions(%d, %d) passed", bad[0], bad[1])
		}
	}
}

// A shard must be within one partition, the one that Kafka's default
// partitioner picks for the row key.
func TestPartitionIsKafkasChoice(t *testing.T) {
	for range 1000 {
		row := uuid.New()
		kafka := int(uint32(Murmur2([]byte(row.String())))&0x7fffffff) % 256
		if got := PartitionOf(ShardOf(row, 4096), 256); int(got) != kafka {
			t.Fatalf("row %s: partition %d, Kafka's default partitioner picks %d", row, got, kafka)
		}
	}
}

func TestNames(t *testing.T) {
	good := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	bad := func(err error) {
		t.Helper()
		if err == nil {
			t.Error("accepted")
		}
	}
	good(CheckDatastore("trips"))
	good(CheckDatastore("t" + strings.Repeat("1", 30)))
	for _, s := range []string{"", "T", "1a", "a_b", "a.b", "t" + strings.Repeat("1", 31), "é", "trips\n"} {
		bad(CheckDatastore(s))
	}
	good(CheckColumn("B"))
	good(CheckColumn("FARE_ADJUSTMENT"))
	good(CheckColumn("B" + strings.Repeat("_", 63)))
	for _, s := range []string{"", "_all", "1", "A-B", "B" + strings.Repeat("_", 64), "BASE\n"} {
		bad(CheckColumn(s))
	}
	for _, s := range []string{"", "x", "{0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77}", "0c2f6a4e6a3c4d7f9f1e0d6b1f3a5c77", "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c7g", "urn:uuid:0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77"} {
		_, err := ParseRowKey(s)
		bad(err)
	}
	for _, s := range []string{"", "+1", "01", "-0", " 1", "1 ", "1.0", "1e3", "9223372036854775808", "-9223372036854775809"} {
		_, err := ParseRefKey(s)
		bad(err)
	}
	for _, s := range []string{"0", "-1", "9223372036854775807", "-9223372036854775808"} {
		_, err := ParseRefKey(s)
		good(err)
	}
	ds, shard, ok := ParseDatabaseName(DatabaseName("trips", 7))
	if ds != "trips" || shard != 7 || !ok {
		t.Errorf("trips_0007 parsed to %q %d %v", ds, shard, ok)
	}
	if _, _, ok := ParseDatabaseName("cellog_meta"); ok {
		t.Error("cellog_meta taken for a shard")
	}
	k := Key{Row: uuid.New(), Column: "BASE", Ref: -3}
	if got, err := ParseKey(k.String()); err != nil || got != k {
		t.Errorf("ParseKey(%s) = %v, %v", k, got, err)
	}
}
