package body

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	kzlib "github.com/klauspost/compress/zlib"
)

// trips returns different bodies of about 600 bytes, such as bench/tail's,
// long enough together to be strange to a processor that has seen them before.
func trips(rnd *rand.Rand, n int) []string {
	out := make([]string, n)
	for i := range out {
		id := func() string {
			return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", rnd.Uint32(), rnd.IntN(1<<16), rnd.IntN(1<<12), rnd.IntN(1<<12), rnd.Int64N(1<<48))
		}
		leg := func(from, to string) string {
			return fmt.Sprintf(`{"from":{"zone":"%s","city":"New York","lat":%.4f,"lng":%.4f},"to":{"zone":"%s","city":"New York","lat":%.4f,"lng":%.4f},"miles":%d.%d}`,
				from, 40+rnd.Float64(), -74+rnd.Float64(), to, 40+rnd.Float64(), -74+rnd.Float64(), rnd.IntN(20), rnd.IntN(10))
		}
		out[i] = fmt.Sprintf(`{"driver_partner_uuid":"%s","city_uuid":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","trip_created_at":"2026-03-%02dT%02d:%02d:00Z","legs":[%s,%s],"fare":%d.%02d,"tip":%d.%02d,"tolls":0.0,"payment":"credit card","currency":"USD"}`,
			id(), 1+rnd.IntN(28), rnd.IntN(24), rnd.IntN(60), leg("Upper East Side North", "Long Island City"), leg("Long Island City", "Astoria"), rnd.IntN(60), rnd.IntN(100), rnd.IntN(10), rnd.IntN(100))
	}
	return out
}

// BenchmarkInflate compares with the reader of the library that packs.
func BenchmarkInflate(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, size := range []struct {
		name         string
		bodies, each int
	}{{"600B", 256, 1}, {"8KiB", 32, 14}, {"1MiB", 2, 1800}} {
		var all [][]byte
		length := 0
		for len(all) < size.bodies {
			stored := mustEncode(b, []byte("["+strings.Join(trips(rnd, size.each), ",")+"]"))
			if stored[0] != formatZlib {
				continue // some of the short ones
			}
			out, err := standard(stored[headerLen:], 1<<24)
			if err != nil {
				b.Fatal(err)
			}
			all, length = append(all, stored[headerLen:]), len(out)
		}
		b.Run(size.name+"/library", func(b *testing.B) {
			b.SetBytes(int64(length))
			b.ReportAllocs()
			var src bytes.Reader
			src.Reset(all[0])
			r, err := kzlib.NewReader(&src)
			if err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, 2<<20)
			i := 0
			defer reportCPU(b)()
			for b.Loop() {
				src.Reset(all[i%len(all)])
				i++
				if err := r.(kzlib.Resetter).Reset(&src, nil); err != nil {
					b.Fatal(err)
				}
				for n := 0; err != io.EOF; {
					var got int
					if got, err = r.Read(buf[n:]); err != nil && err != io.EOF {
						b.Fatal(err)
					}
					n += got
				}
				err = nil
			}
		})
		b.Run(size.name+"/ours", func(b *testing.B) {
			b.SetBytes(int64(length))
			b.ReportAllocs()
			f := new(inflater)
			i := 0
			defer reportCPU(b)()
			for b.Loop() {
				if _, err := f.inflate(all[i%len(all)], 2<<20); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
