package kafkatest

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/cellog/cellog/internal/freeport"
)

// EnvKafka names the environment variable that chooses the broker: "real" for
// Apache Kafka, anything else for kfake.
const EnvKafka = "CELLOG_TEST_KAFKA"

// Real reports whether tests run on Apache Kafka.
func Real() bool { return os.Getenv(EnvKafka) == "real" }

// Broker is a Kafka cluster of one broker.
type Broker struct {
	fake *fake // or else
	real *apache
}

// Start returns a running broker. It is stopped when the test ends, except
// Apache Kafka, which serves all tests of the binary.
func Start(t testing.TB) *Broker {
	t.Helper()
	if Real() {
		return &Broker{real: sharedApache(t)}
	}
	b := &Broker{fake: &fake{dir: t.TempDir(), port: freePort(t)}}
	b.fake.start(t)
	t.Cleanup(b.fake.stop)
	return b
}

// Addrs returns the bootstrap servers.
func (b *Broker) Addrs() []string {
	port := 0
	if b.fake != nil {
		port = b.fake.port
	} else {
		port = b.real.port
	}
	return []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
}

// PID is the process of Apache Kafka, for tests that freeze it; kfake lives in
// this one.
func (b *Broker) PID() int {
	if b.fake != nil {
		return os.Getpid()
	}
	return b.real.pid
}

// Stop takes the broker away, in an orderly way, until Restart.
func (b *Broker) Stop(t testing.TB) {
	t.Helper()
	if b.fake != nil {
		b.fake.stop()
		return
	}
	b.real.end(syscall.SIGTERM)
}

// Kill takes Apache Kafka away as a crash does (kill -9), until Restart; kfake,
// which lives in this process, is stopped.
func (b *Broker) Kill(t testing.TB) {
	t.Helper()
	if b.fake != nil {
		b.fake.stop()
		return
	}
	b.real.end(syscall.SIGKILL)
}

// Restart stops the broker, if it runs, and starts it again with its data at
// the same address.
func (b *Broker) Restart(t testing.TB) {
	t.Helper()
	b.Stop(t)
	if b.fake != nil {
		b.fake.start(t)
		return
	}
	if err := b.real.start(); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
}

// Prefix returns a prefix for the names of a test's topics, groups and
// transactional ids that no other test has.
func Prefix(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	return fmt.Sprintf("%.60s-%s.", name, strings.ToLower(rand.Text()[:8]))
}

// LeftBehind excuses a goroutine of the Kafka client (franz-go 1.22.3) that now and
// then outlives a consumer's Close: the one that shares out its fetches. It was
// seen once in some hundred runs, on a busy machine; why is not known. A client
// that nobody closed shows by its other goroutines.
var LeftBehind = goleak.IgnoreTopFunction("github.com/twmb/franz-go/pkg/kgo.(*fetchManager).manageFetchConcurrency")

// Main runs the tests of a package, stops Apache Kafka, looks for leaked
// goroutines and exits.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	Shutdown()
	if code == 0 {
		if err := goleak.Find(append(options, LeftBehind)...); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// fake is kfake in this process.
type fake struct {
	dir     string
	port    int
	cluster *kfake.Cluster // nil while stopped
}

func (f *fake) start(t testing.TB) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.Ports(f.port), kfake.DataDir(f.dir), kfake.GroupMinSessionTimeout(time.Second), kfake.BrokerConfigs(map[string]string{
		"log.retention.ms":                     "-1", // kfake trims compacted topics too
		"group.consumer.heartbeat.interval.ms": "100",
	}))
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	f.cluster = c
}

func (f *fake) stop() {
	if f.cluster != nil {
		f.cluster.Close()
		f.cluster = nil
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	p, err := freeport.Take(2) // a KRaft controller wants the next port, too
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	return p
}
