package tail

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/tests/harness"
)

// childEnv makes the test binary a tailer.
const childEnv = "CELLOG_TAIL_TEST_CHILD"

// childSpec is what a tailer as a child process is told.
type childSpec struct {
	Account    account
	Brokers    []string
	Cluster    string
	Prefix     string
	Mark       string
	Point      string // at this failpoint,
	Nth        int    // at its nth hit,
	Signal     int    // send this signal to oneself
	Idempotent bool   // no transactions
}

func runChild(text string) {
	var spec childSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		fmt.Println("error", err)
		os.Exit(2)
	}
	var mu sync.Mutex
	hits := 0
	failpoint.Set(func(name string) bool {
		if name == "publish/idempotent-only" {
			return spec.Idempotent
		}
		if name == "tailer/marked" {
			fmt.Println("streaming")
		}
		if name != spec.Point {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if hits++; hits == spec.Nth {
			fmt.Println("signal")
			if err := harness.SignalSelf(syscall.Signal(spec.Signal)); err != nil {
				fmt.Println("error", err)
			}
		}
		return false
	})
	tl, closer, err := buildTailer(spec, slog.New(slog.NewTextHandler(os.Stdout, nil)), nil)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(2)
	}
	defer closer()
	tl.Run(context.Background())
}

// buildTailer makes a tailer; change may alter its configuration.
func buildTailer(spec childSpec, logger *slog.Logger, change func(*cdc.Config, *binlog.Config)) (*cdc.Tailer, func(), error) {
	pub, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: spec.Brokers}, Cluster: spec.Cluster, Prefix: spec.Prefix, Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	db, err := openDB(spec.Account)
	if err != nil {
		pub.Close()
		return nil, nil, err
	}
	closer := func() { pub.Close(); db.Close() }
	bc := binlog.Config{Addr: spec.Account.Addr, User: spec.Account.User, Password: spec.Account.Password, HeartbeatPeriod: 200 * time.Millisecond}
	cfg := cdc.Config{
		Cluster:   spec.Cluster,
		Publisher: pub,
		Mark:      spec.Mark,
		BeatEvery: beatEvery,
		StandBy:   6 * beatEvery,
		FillWait:  2 * time.Second,
		Logger:    logger,
		Beat: func(ctx context.Context, cluster string, beat int64, at time.Time) error {
			_, err := db.ExecContext(ctx, "INSERT INTO cellog_meta.heartbeats VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE beat = VALUES(beat), written_at = VALUES(written_at)", cluster, beat, at)
			return err
		},
	}
	if change != nil {
		change(&cfg, &bc)
	}
	src, err := binlog.New(bc)
	if err != nil {
		closer()
		return nil, nil, err
	}
	if cfg.Nodes == nil {
		cfg.Nodes = func(context.Context) ([]cdc.Node, error) {
			return []cdc.Node{{Name: "n1", Master: true, Source: src, Entities: entities{db}}}, nil
		}
	}
	tl, err := cdc.New(cfg)
	if err != nil {
		closer()
		return nil, nil, err
	}
	return tl, closer, nil
}

// child is a running tailer process.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []string
}

func (r *rig) spec() childSpec {
	return childSpec{Account: r.account, Brokers: r.kafka.Addrs, Cluster: r.cluster, Prefix: r.prefix}
}

func startChild(t testing.TB, spec childSpec, env ...string) *child {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), childEnv+"="+string(text), "GOMAXPROCS=2"), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, sc.Text())
			c.mu.Unlock()
		}
		c.cmd.Wait()
	}()
	t.Cleanup(func() { c.kill() })
	return c
}

func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGKILL)
	<-c.done
}

// said returns whether the child has printed a line that holds s.
func (c *child) said(s string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		if strings.Contains(l, s) {
			return true
		}
	}
	return false
}

func (c *child) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// wait waits until the child printed s or ended, at most so long.
func (c *child) wait(most time.Duration, s string) bool {
	deadline := time.Now().Add(most)
	for time.Now().Before(deadline) {
		if s != "" && c.said(s) {
			return true
		}
		select {
		case <-c.done:
			return c.said(s)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false
}
