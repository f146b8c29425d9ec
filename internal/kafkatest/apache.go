package kafkatest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// EnvDir names the environment variable with the folder of Apache Kafka's start
// script, as tools/get-kafka.sh makes it.
const EnvDir = "CELLOG_KAFKA_DIR"

// dirPrefix is that of the brokers' directories.
const dirPrefix = "cellog-kafkatest-"

// startTimeout bounds a JVM's start on a busy machine.
const startTimeout = 2 * time.Minute

var shared struct {
	mu     sync.Mutex
	broker *apache
	err    error
}

// apache is an Apache Kafka broker in a child process.
type apache struct {
	script, dir string
	port        int
	pid         int
	done        chan struct{} // closed when the process is gone
}

func sharedApache(t testing.TB) *apache {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.broker == nil && shared.err == nil {
		shared.broker, shared.err = newApache(t)
	}
	if shared.err != nil {
		t.Fatalf("kafkatest: %v", shared.err)
	}
	return shared.broker
}

// Shutdown ends Apache Kafka and removes its data. Main does it.
func Shutdown() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if b := shared.broker; b != nil {
		b.end(syscall.SIGKILL)
		_ = os.RemoveAll(b.dir) // removeStale of a later run tries again
		shared.broker = nil
	}
}

func newApache(t testing.TB) (*apache, error) {
	script, err := findScript()
	if err != nil {
		return nil, err
	}
	removeStale()
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	b := &apache{script: script, dir: dir, port: freePort(t)}
	if err := b.start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return b, nil
}

func findScript() (string, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		p := filepath.Join(dir, "broker")
		_, err := os.Stat(p)
		return p, err
	}
	dir, err := os.Getwd()
	for err == nil {
		p := filepath.Join(dir, ".cache", "kafka", "broker")
		if _, serr := os.Stat(p); serr == nil {
			return p, nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return "", errors.New("no Apache Kafka: run tools/get-kafka.sh, or set " + EnvDir + " to the folder it made")
}

// start starts the broker and returns when it accepts connections.
func (b *apache) start() error {
	log, err := os.OpenFile(filepath.Join(b.dir, "broker.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // the child keeps it: see removeStale
		return fmt.Errorf("lock %s: %w", log.Name(), err)
	}
	cmd := exec.Command(b.script, b.dir, strconv.Itoa(b.port),
		"group.min.session.timeout.ms=1000",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
		"auto.create.topics.enable=false")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	b.done = make(chan struct{})
	started := make(chan error, 1)
	go func(done chan struct{}) {
		// The kernel sends Pdeathsig when the thread that made the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed, or its log says why
		}
		close(done)
	}(b.done)
	if err := <-started; err != nil {
		return err
	}
	b.pid = cmd.Process.Pid
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port))
	for {
		// The port opens when the broker may serve: it is the last step of a start.
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
		select {
		case <-b.done:
			return fmt.Errorf("broker Apache Kafka ended while starting:\n%s", b.logTail())
		case <-deadline.C:
			b.end(syscall.SIGKILL)
			return fmt.Errorf("broker Apache Kafka did not start within %v:\n%s", startTimeout, b.logTail())
		case <-tick.C:
		}
	}
}

// end ends the broker and returns when it is gone: by SIGTERM in an orderly way,
// by SIGKILL as a crash would.
func (b *apache) end(sig syscall.Signal) {
	select {
	case <-b.done:
		return
	default:
	}
	_ = syscall.Kill(b.pid, sig) // it may end by itself just now
	<-b.done
}

func (b *apache) logTail() string {
	text, err := os.ReadFile(filepath.Join(b.dir, "broker.log"))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-3000):]))
}

// removeStale removes what killed test runs left: directories whose broker is
// gone.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // the pattern is legal
	for _, dir := range dirs {
		st, err := os.Stat(dir)
		if err != nil || time.Since(st.ModTime()) < time.Minute {
			continue // gone, or just being made
		}
		f, err := os.OpenFile(filepath.Join(dir, "broker.log"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue // another user's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}
