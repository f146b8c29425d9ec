package lag

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/triggers"
)

func TestMain(m *testing.M) {
	code := m.Run()
	kafkatest.Shutdown()
	os.Exit(code)
}

const definition = `table: driver_index
datastore: trips
column_defs:
  - column_key: BASE
    fields:
      - {field: driver, type: uuid}
      - {field: at, type: datetime}
`

func number(b *testing.B, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s=%s: want a positive number", name, text)
	}
	return n
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// trip is a body of about 600 bytes.
func trip(driver uuid.UUID, n int) []byte {
	return fmt.Appendf(nil, `{"driver":%q,"at":"2026-03-01T00:%02d:%02dZ","trip":%d,"pickup":"2019-03-01T00:17:02Z","dropoff":"2019-03-01T00:31:07Z","passengers":1,`+
		`"distance":%d.%02d,"fare":%d.5,"tip":2.15,"tolls":0,"total":%d.65,"color":"yellow","payment":"credit card","pickup_zone":"Lenox Hill West",`+
		`"dropoff_zone":"UN/Turtle Bay South","pickup_borough":"Manhattan","dropoff_borough":"Manhattan","rider_uuid":%q,"city_uuid":%q,"status":"completed",`+
		`"route":[[40.7681,-73.9819],[40.7655,-73.9801],[40.7612,-73.9776]]}`,
		driver, n/60%60, n%60, n, n%20, n%100, n%80, n%90, uuid.New(), uuid.New())
}

// times remembers when rows were seen; each is written once, by one goroutine.
type times struct {
	at    []atomic.Int64
	count atomic.Int64
}

func (t *times) saw(n int) {
	if t.at[n].CompareAndSwap(0, time.Now().UnixNano()) {
		t.count.Add(1)
	}
}

// BenchmarkLag prints the lags at a steady rate.
func BenchmarkLag(b *testing.B) {
	rate, n := number(b, "CELLOG_BENCH_RATE", 2000), number(b, "CELLOG_BENCH_CELLS", 30000)
	dir := b.TempDir()
	schemas := filepath.Join(dir, "schemas")
	must(b, os.Mkdir(schemas, 0o700))
	must(b, os.WriteFile(filepath.Join(schemas, "driver.yml"), []byte(definition), 0o600))
	minions := number(b, "CELLOG_BENCH_MINIONS", 1)
	cfg := app.DevConfig{
		Local:     local.Config{DataDir: filepath.Join(dir, "data"), Clusters: number(b, "CELLOG_BENCH_CLUSTERS", 2), Minions: &minions, Binary: os.Getenv("CELLOG_MYSQLD")},
		Datastore: "trips", Shards: 16, Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Schemas: schemas,
	}
	if kafkatest.Real() {
		cfg.Local.KafkaBrokers = kafkatest.Start(b).Addrs()
	}
	dev, err := app.StartDev(context.Background(), cfg)
	must(b, err)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		must(b, dev.Stop(ctx))
	}()
	brokers := kafka.Config{Addrs: dev.Config().Kafka.Brokers}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	defer func() { cancel(); parts.Wait() }()

	answered, inKafka, inTrigger := &times{at: make([]atomic.Int64, n)}, &times{at: make([]atomic.Int64, n)}, &times{at: make([]atomic.Int64, n)}
	rows := make(map[uuid.UUID]int, n)
	keys, drivers := make([]uuid.UUID, n), make([]uuid.UUID, n)
	for i := range n {
		keys[i] = uuid.New()
		drivers[i] = uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i%500))
		rows[keys[i]] = i
	}
	rt, err := triggers.New(triggers.Config{Kafka: brokers})
	must(b, err)
	must(b, rt.On("trips", "BASE", "bench", func(_ context.Context, c cellog.Cell) error {
		if i, ok := rows[c.Row]; ok {
			inTrigger.saw(i)
		}
		return nil
	}))
	parts.Go(func() {
		if err := rt.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: brokers})
	must(b, err)
	defer consumer.Close()
	parts.Go(func() {
		err := consumer.Follow(ctx, kafka.FromZero(), []string{"trips.BASE"}, func(d kafka.Delivery) error {
			c, err := record.Decode(d.Record)
			if i, ok := rows[c.Row]; ok && err == nil {
				inKafka.saw(i)
			}
			return err
		})
		if err != nil {
			b.Error(err)
		}
	})

	cells, err := client.New(client.Config{URLs: []string{dev.URL()}, Shards: map[string]int{"trips": 16}})
	must(b, err)
	defer cells.Close()
	put := func(i int, row uuid.UUID) {
		_, err := cells.Put(ctx, "trips", cellog.Put{Key: cellog.Key{Row: row, Column: "BASE", Ref: 1}, Body: trip(drivers[i], i)})
		if err != nil {
			b.Error(err)
		}
	}
	// The topic, the group and the connections are there before the clock runs.
	warm := uuid.New()
	rows[warm] = 0
	put(0, warm)
	await(b, "the first cell", func() bool { return inTrigger.count.Load() > 0 && inKafka.count.Load() > 0 })
	inKafka.at[0].Store(0)
	inTrigger.at[0].Store(0)
	inKafka.count.Store(0)
	inTrigger.count.Store(0)

	index := asked{}
	parts.Go(func() { index.run(ctx, b, cells, answered, keys, drivers) })

	b.ResetTimer()
	took := make([]time.Duration, n)
	begin := time.Now()
	var next atomic.Int64
	var putters sync.WaitGroup
	for range 128 {
		putters.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
				time.Sleep(time.Until(due))
				put(i, keys[i])
				took[i] = time.Since(due) // lateness counts
				answered.saw(i)
			}
		})
	}
	putters.Wait()
	achieved := float64(n) / time.Since(begin).Seconds()
	await(b, "all cells", func() bool { return inTrigger.count.Load() == int64(n) && inKafka.count.Load() == int64(n) })
	b.StopTimer()

	slices.Sort(took)
	report(b, "put", took)
	for name, t := range map[string]*times{"kafka": inKafka, "trigger": inTrigger} {
		lags := make([]time.Duration, n)
		for i := range n {
			lags[i] = max(0, time.Duration(t.at[i].Load()-answered.at[i].Load()))
		}
		slices.Sort(lags)
		report(b, name, lags)
	}
	report(b, "index", index.sorted())
	b.ReportMetric(achieved, "cells/s")
	b.ReportMetric(0, "ns/op")
}

func report(b *testing.B, name string, sorted []time.Duration) {
	if len(sorted) == 0 {
		return
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(sorted[len(sorted)/2]), name+"-p50-ms")
	b.ReportMetric(ms(sorted[(len(sorted)-1)*99/100]), name+"-p99-ms")
}

// asked asks the index for the newest row answered, until it knows it.
type asked struct {
	mu   sync.Mutex
	lags []time.Duration
}

func (a *asked) run(ctx context.Context, b *testing.B, cells *client.Client, answered *times, keys, drivers []uuid.UUID) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(1+rand.IntN(20)) * time.Millisecond)
		i := min(int(answered.count.Load()), len(keys)) - 1
		for i >= 0 && answered.at[i].Load() == 0 {
			i--
		}
		if i < 0 || i >= len(keys)-1 {
			continue
		}
		for ctx.Err() == nil {
			sent := time.Now()
			answer, err := cells.IndexQuery(ctx, "trips", "driver_index", url.Values{"driver": {drivers[i].String()}, "at.gte": {fmt.Sprintf("2026-03-01T00:%02d:%02dZ", i/60%60, i%60)}, "limit": {"1000"}})
			if err != nil {
				if ctx.Err() == nil {
					b.Error(err)
				}
				return
			}
			var page struct {
				Entries []struct {
					Row uuid.UUID `json:"row_key"`
				} `json:"entries"`
			}
			if err := json.Unmarshal(answer, &page); err != nil {
				b.Error(err)
				return
			}
			if slices.ContainsFunc(page.Entries, func(e struct {
				Row uuid.UUID `json:"row_key"`
			}) bool {
				return e.Row == keys[i]
			}) {
				// What the question saw was there when it was sent, or came
				// a moment later: the time it took counts against the index.
				a.mu.Lock()
				a.lags = append(a.lags, max(time.Since(time.Unix(0, answered.at[i].Load())), 0))
				a.mu.Unlock()
				break
			}
			time.Sleep(time.Until(sent.Add(2 * time.Millisecond)))
		}
	}
}

func (a *asked) sorted() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.lags)
	return slices.Clone(a.lags)
}

func await(b *testing.B, what string, ok func() bool) {
	b.Helper()
	for stop := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(stop) {
			b.Fatalf("waited two minutes for %s", what)
		}
	}
}
