package life

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/tests/harness"
)

// shards is what each test's datastore has.
const shards = harness.Shards

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// ready is what `cellog dev` writes into its ready file.
type ready struct {
	HTTP     string   `json:"http"`
	Admin    string   `json:"admin"`
	Kafka    []string `json:"kafka"`
	Clusters []struct {
		Name  string `json:"name"`
		Nodes []struct {
			Name     string `json:"name"`
			Role     string `json:"role"`
			Addr     string `json:"addr"`
			User     string `json:"user"`
			Password string `json:"password"`
			PID      int    `json:"pid"`
		} `json:"nodes"`
	} `json:"clusters"`
}

// dev is a running `cellog dev`.
type dev struct {
	ready
	dir    string // its data directory
	args   []string
	cmd    *exec.Cmd
	exited chan error
	log    *bytes.Buffer // read only after it exited
}

// newDev returns a dev that was not started, over an empty data directory.
func newDev(t *testing.T, args ...string) *dev {
	t.Helper()
	dir, err := os.MkdirTemp("", "life") // short: unix sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	d := &dev{dir: filepath.Join(dir, "data")}
	t.Cleanup(func() {
		d.kill(t)
		os.RemoveAll(dir)
	})
	d.args = []string{"dev", "--data-dir", d.dir, "--shards", fmt.Sprint(shards), "--clusters", "2", "--minions", "1",
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--schemas", "testdata/schemas", "--ready-file", filepath.Join(dir, "ready.json")}
	d.args = append(d.args, "--mysql", harness.Flavour())
	if harness.Flavour() == "mysql" && os.Getenv("CELLOG_MYSQLD") != "" {
		d.args = append(d.args, "--mysqld", os.Getenv("CELLOG_MYSQLD"))
	}
	if os.Getenv("CELLOG_TEST_KAFKA") == "real" {
		d.args = append(d.args, "--kafka", strings.Join(kafkatest.Start(t).Addrs(), ","), "--kafka-prefix", kafkatest.Prefix(t))
	}
	d.args = append(d.args, args...)
	return d
}

// start starts the process and waits until everything serves.
func (d *dev) start(t *testing.T) {
	t.Helper()
	file := d.args[indexOf(d.args, "--ready-file")+1]
	os.Remove(file)
	d.log = &bytes.Buffer{}
	d.cmd = exec.Command(harness.Binary, d.args...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.exited = make(chan error, 1)
	go func(cmd *exec.Cmd, exited chan<- error) { exited <- cmd.Wait() }(d.cmd, d.exited)
	harness.WaitFor(t, 2*time.Minute, func() error {
		select {
		case err := <-d.exited:
			d.cmd = nil
			t.Fatalf("cellog dev ended: %v\n%s", err, harness.Tail(d.log.String()))
		default:
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return json.Unmarshal(b, &d.ready)
	})
}

// kill ends cellog and all its servers at once with SIGKILL and waits until
// they are gone.
func (d *dev) kill(t *testing.T) {
	t.Helper()
	if d.cmd == nil {
		return
	}
	for _, c := range d.Clusters {
		for _, n := range c.Nodes {
			_ = syscall.Kill(n.PID, syscall.SIGKILL) // gone is as good
		}
	}
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
	<-d.exited
	d.cmd = nil
	for _, c := range d.Clusters {
		for _, n := range c.Nodes {
			harness.WaitFor(t, 2*time.Minute, func() error {
				if !harness.Gone(n.PID) {
					return fmt.Errorf("mysqld %d is still there", n.PID)
				}
				return nil
			})
		}
	}
}

// stop ends it as Ctrl-C does, and fails the test when that is not clean.
func (d *dev) stop(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-d.exited:
		d.cmd = nil
		if err != nil {
			t.Fatalf("cellog dev after SIGINT: %v\n%s", err, harness.Tail(d.log.String()))
		}
	case <-time.After(time.Minute):
		t.Fatal("cellog dev did not stop within a minute of SIGINT")
	}
	for _, c := range d.Clusters {
		for _, n := range c.Nodes {
			if !harness.Gone(n.PID) {
				t.Errorf("%s (mysqld %d) outlived cellog dev", n.Name, n.PID)
			}
		}
	}
}

func (d *dev) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URLs: []string{d.HTTP}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// prefix returns the topics' prefix.
func (d *dev) prefix() string {
	if i := indexOf(d.args, "--kafka-prefix"); i >= 0 {
		return d.args[i+1]
	}
	return ""
}

func (d *dev) consumer(t *testing.T) *kafka.Consumer {
	t.Helper()
	c, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: kafka.Config{Addrs: d.Kafka}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func indexOf(s []string, x string) int {
	for i := range s {
		if s[i] == x {
			return i
		}
	}
	return -1
}

// money is an exact sum.
type money struct{ big.Rat }

func (m *money) add(t *testing.T, text string) {
	t.Helper()
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatalf("%q is no number", text)
	}
	m.Add(&m.Rat, r)
}

func (m *money) String() string { return m.FloatString(2) }

// config writes the configuration of the running dev and returns its path.
func (d *dev) config(t *testing.T) string {
	t.Helper()
	out, code := harness.Cellog(t, "dev", "--data-dir", d.dir, "--print-config")
	if code != 0 {
		t.Fatal("no configuration")
	}
	file := filepath.Join(filepath.Dir(d.dir), "cellog.yml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
