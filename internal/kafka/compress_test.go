package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// batch returns n bytes that compress as cells do.
func batch(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, `ce_id trips/%d/%d application/json {"pickup":"2019-03-%02dT%02d:%02d:00Z","fare":%d.%02d,"payment":"credit card","zone":"Upper West Side %d"}`,
			rnd.IntN(16), rnd.IntN(1e6), rnd.IntN(31), rnd.IntN(24), rnd.IntN(60), rnd.IntN(90), rnd.IntN(100), rnd.IntN(40))
	}
	return b.Bytes()[:n]
}

// What the compressor makes is what the client's own decompressor reads, at
// the edges of blocks, too.
func TestCompressedBatchesComeBack(t *testing.T) {
	c := new(compressor)
	noise := make([]byte, 3*int(lz4Block))
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for _, src := range [][]byte{{}, {1}, batch(200), batch(int(lz4Block) - 1), batch(int(lz4Block)), batch(int(lz4Block) + 1), batch(9 << 20), noise} {
		var dst bytes.Buffer
		out, codec := c.Compress(&dst, src)
		if codec != kgo.CodecLz4 {
			t.Fatalf("%d bytes: codec %d", len(src), codec)
		}
		back, err := kgo.DefaultDecompressor().Decompress(out, codec)
		if err != nil || !bytes.Equal(back, src) {
			t.Fatalf("%d bytes: %d come back, %v", len(src), len(back), err)
		}
	}
}

func BenchmarkCompress(b *testing.B) {
	def, err := kgo.DefaultCompressor(kgo.Lz4Compression())
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		kgo.Compressor
	}{{"ours", new(compressor)}, {"client's", def}} {
		for _, n := range []int{300, 30_000, 1_000_000} {
			src := batch(n)
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(n))
				var dst bytes.Buffer
				size := 0
				for b.Loop() {
					dst.Reset()
					out, _ := c.Compress(&dst, src)
					size = len(out)
				}
				b.ReportMetric(float64(size)/float64(n), "ratio")
			})
		}
	}
}
