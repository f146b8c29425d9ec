package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stopTimeout is how long a process may take to end after SIGTERM.
const stopTimeout = 30 * time.Second

// process is a child whose costs are measured. It ends with the test, and the
// kernel kills it when this process dies.
type process struct {
	name, dir string
	pid       int
	began     time.Time
	done      chan struct{} // closed when it is gone
}

// start runs argv; what it prints goes to files in dir.
func start(tb testing.TB, name, dir string, env []string, argv ...string) *process {
	tb.Helper()
	p := &process{name: name, dir: dir, done: make(chan struct{})}
	var files [2]*os.File
	for i, ext := range []string{".out", ".log"} {
		f, err := os.OpenFile(filepath.Join(dir, name+ext), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), files[0], files[1]
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel sends Pdeathsig when the thread that made the child ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // stopped, or its log says why
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	p.pid, p.began = cmd.Process.Pid, time.Now()
	tb.Cleanup(p.stop)
	return p
}

// stop ends the process and returns when it is gone.
func (p *process) stop() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = syscall.Kill(p.pid, syscall.SIGTERM) // it may end by itself just now
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.done
	}
}

// printed returns the last whole line of what the process printed.
func (p *process) printed() string {
	f, err := os.Open(filepath.Join(p.dir, p.name+".out"))
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(st.Size(), 100))
	n, _ := f.ReadAt(b, st.Size()-int64(len(b))) // short: it grew or is gone
	lines := strings.Split(string(b[:n]), "\n")
	if len(lines) < 2 {
		return ""
	}
	return lines[len(lines)-2]
}

// logTail is the end of the process's log, for an error.
func (p *process) logTail() string {
	text, err := os.ReadFile(filepath.Join(p.dir, p.name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-3000):]))
}

// cpuTime is the user and system time that a process has used; it is zero when
// the process is gone.
func cpuTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	d, err := parseStat(string(text))
	if err != nil {
		return 0
	}
	return d
}

// parseStat reads the user and system time out of /proc/PID/stat, in which a
// program's name may hold blanks and parentheses.
func parseStat(text string) (time.Duration, error) {
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 13 {
		return 0, errors.New("stat is too short")
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	const tick = time.Second / 100 // USER_HZ, the same on all of Linux
	return time.Duration(user+system) * tick, errors.Join(err, err2)
}

// peakMiB is the most memory that a process was resident with.
func peakMiB(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err == nil {
				return kib / 1024
			}
		}
	}
	return 0
}
