package devbroker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/cellog/cellog/internal/kafkatest"
)

const partitions = 5

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		port, err := strconv.Atoi(os.Args[3])
		if err == nil {
			var b *Broker
			if b, err = Start(Config{Dir: os.Args[2], Port: port, NoSync: true}); err == nil {
				fmt.Println("port", b.Port())
				select {} // until killed
			}
		}
		fmt.Println(err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, kafkatest.LeftBehind)
}

// served is a broker in a process that can be killed.
type served struct {
	cmd  *exec.Cmd
	port string
	once sync.Once
}

func serve(t *testing.T, dir, port string) *served {
	t.Helper()
	s := &served{cmd: exec.Command(os.Args[0], "serve", dir, port)}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	var ok bool
	if s.port, ok = strings.CutPrefix(strings.TrimSpace(line), "port "); !ok {
		t.Fatalf("%q, %v", line, err)
	}
	return s
}

func (s *served) kill() {
	s.once.Do(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // killed
	})
}

func seeds(port string) kgo.Opt { return kgo.SeedBrokers("127.0.0.1:" + port) }

// readAll returns what a reader of committed records sees in each partition.
func readAll(t *testing.T, port, topic string) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(seeds(port), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	out := make([][]string, len(ends[topic]))
	left := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left++
		}
	})
	for left > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("%d partitions left: %v", left, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out[r.Partition] = append(out[r.Partition], string(r.Value))
			}
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset == end.Offset-1 {
				left--
			}
		})
	}
	return out
}

// put makes one transaction with a record in every partition.
func put(ctx context.Context, cl *kgo.Client, topic, value string) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	var recs []*kgo.Record
	for p := range int32(partitions) {
		recs = append(recs, &kgo.Record{Topic: topic, Partition: p, Value: []byte(value)})
	}
	if err := cl.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		return err
	}
	return cl.EndTransaction(ctx, kgo.TryCommit)
}

func producer(t *testing.T, port string) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(seeds(port), kgo.TransactionalID("writer"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func TestTransactionsAreWholeAfterKills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	dir, port := t.TempDir(), "0"
	acked := map[string]bool{}
	next := 0
	for round := range 12 {
		s := serve(t, dir, port)
		port = s.port
		cl := producer(t, port)
		if round == 0 {
			if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), partitions, 1, nil, "t"); err != nil {
				t.Fatal(err)
			}
		}
		for p, got := range readAll(t, port, "t") {
			seen := map[string]bool{}
			for _, v := range got {
				if seen[v] {
					t.Errorf("round %d, partition %d: %s is there twice", round, p, v)
				}
				seen[v] = true
			}
			for v := range acked {
				if !seen[v] {
					t.Errorf("round %d, partition %d: %s was acknowledged and is not there", round, p, v)
				}
			}
			if p > 0 {
				continue
			}
			for v := range seen { // what is in one partition must be in all
				acked[v] = true
			}
		}
		if t.Failed() {
			cl.Close()
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		killed := make(chan struct{})
		time.AfterFunc(time.Duration(20+rnd.IntN(300))*time.Millisecond, func() {
			s.kill()
			cancel()
			cl.Close() // else what was sent is tried again for ever
			close(killed)
		})
		var err error
		for err == nil {
			v := "v" + strconv.Itoa(next)
			next++
			if err = put(ctx, cl, "t", v); err == nil {
				acked[v] = true
			}
		}
		<-killed
	}
	t.Logf("%d transactions, %d kept", next, len(acked))
}

func TestCompactedTopicsAreCompactedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	b, err := Start(Config{Dir: dir, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { b.Stop() }()
	cl := producer(t, strconv.Itoa(b.Port()))
	policy := "compact"
	if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), 1, 1, map[string]*string{"cleanup.policy": &policy}, "_cellog.positions.c1"); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: "_cellog.positions.c1", Key: []byte(key), Value: []byte(key + strconv.Itoa(i))}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.EndTransaction(context.Background(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
	cl.Close()
	b.Stop()
	part := filepath.Join(dir, "partitions", "_cellog.positions.c1-0")
	before, err := treeSize(part)
	if err != nil {
		t.Fatal(err)
	}

	// A crash in the middle of a compaction: the files are gone, the backup is there.
	if err := os.MkdirAll(filepath.Join(dir, backup), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(part, filepath.Join(dir, backup, filepath.Base(part))); err != nil {
		t.Fatal(err)
	}
	if b, err = Start(Config{Dir: dir, NoSync: true, CompactAbove: 1000}); err != nil {
		t.Fatal(err)
	}
	after, err := treeSize(part)
	if err != nil {
		t.Fatal(err)
	}
	if after > before/2 { // the markers of a living producer stay
		t.Errorf("%d bytes before, %d after", before, after)
	}
	got := readAll(t, strconv.Itoa(b.Port()), "_cellog.positions.c1")[0]
	if len(got) != 2 || got[0] != "a199" || got[1] != "b199" {
		t.Errorf("got %v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, backup)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the backup is still there: %v", err)
	}
}

func TestTrimLogCutsAHalfEntry(t *testing.T) {
	dir := t.TempDir()
	b, err := Start(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cl := producer(t, strconv.Itoa(b.Port()))
	if _, _, err := cl.ProducerID(context.Background()); err != nil {
		t.Fatal(err)
	}
	cl.Close()
	b.Stop()
	path := filepath.Join(dir, "pids.log")
	whole, err := os.ReadFile(path)
	if err != nil || len(whole) == 0 {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	if err := os.WriteFile(path, append(whole, whole[:len(whole)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err = Start(Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	got, err := os.ReadFile(path)
	if err != nil || len(got)%len(whole) != 0 {
		t.Errorf("%d bytes, want a multiple of %d; %v", len(got), len(whole), err)
	}
}
