package body

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// trip is of the size and kind that production cells have.
const trip = `{"trip_uuid":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","driver_partner_uuid":"0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77",` +
	`"rider_uuid":"9d3c2a51-7f0e-4b56-8a53-3f6f2f0f9b1d","city_uuid":"4f6e8d57-02b7-4b8e-9d1b-6a2f4c1e7a90",` +
	`"request_at":"2019-03-23T20:18:44.120Z","pickup_at":"2019-03-23T20:21:09Z","dropoff_at":"2019-03-23T20:27:24Z",` +
	`"pickup":{"lat":40.767937,"lng":-73.982155,"zone":"Lenox Hill West"},"dropoff":{"lat":40.765602,"lng":-73.964630,"zone":"UN/Turtle Bay South"},` +
	`"passengers":1,"distance":1.6,"fare":"7.00","tip":"2.15","tolls":"0.00","total":"12.95","currency":"USD","payment":"credit card"}`

func BenchmarkEncode(b *testing.B) {
	in := []byte(trip)
	var out []byte
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if out, err = Encode(out[:0], in, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(out)), "stored-B")
	b.ReportMetric(float64(out[0]), "format")
}

func benchmarkAppendJSON(b *testing.B, json string) {
	stored, err := Encode(nil, []byte(json), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	var out []byte
	b.SetBytes(int64(len(json)))
	b.ReportAllocs()
	for b.Loop() {
		if out, err = AppendJSON(out[:0], stored, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(stored[0]), "format")
}

func BenchmarkAppendJSON(b *testing.B) {
	b.Run("trip", func(b *testing.B) { benchmarkAppendJSON(b, trip) })
	b.Run("zipped", func(b *testing.B) { benchmarkAppendJSON(b, "["+trip+","+trip+"]") })
	b.Run("1MiB", func(b *testing.B) { benchmarkAppendJSON(b, "["+strings.Repeat(trip+",", 1800)+"0]") })
}

func BenchmarkEqual(b *testing.B) {
	x, _ := Encode(nil, []byte(trip), Limits{})
	y, err := Encode(nil, []byte(`{"passengers":1.0,`+strings.Replace(trip[1:], `"passengers":1,`, "", 1)), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	for name, other := range map[string][]byte{"same": x, "reordered": y} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := Equal(x, other); err != nil || !ok {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	stored, err := Encode(nil, []byte(trip), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Hash(stored); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck is the checksum of a body of 400 bytes.
func BenchmarkCheck(b *testing.B) {
	stored := sealed(formatPlain, []byte(trip)[:400])
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		if err := Check(stored); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPayloadToJSON is AppendJSON without checksum and inflating.
func BenchmarkPayloadToJSON(b *testing.B) {
	var all [][]byte
	for _, text := range trips(rand.New(rand.NewPCG(1, 3)), 256) {
		var open inflated
		payload, err := open.open(mustEncode(b, []byte(text)), MaxBytes)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, bytes.Clone(payload))
		open.release()
	}
	var out []byte
	b.ReportAllocs()
	defer reportCPU(b)()
	for i := 0; b.Loop(); i++ {
		var err error
		if out, err = appendPayload(out[:0], all[i%len(all)], MaxBytes); err != nil {
			b.Fatal(err)
		}
	}
}
