package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/freeport"
)

// Shards is what each test's datastore has.
const Shards = 16

// Binary is the path of the cellog that Main built.
var Binary string

// Main builds the cellog binary, with the race detector if the tests have it,
// runs the tests and returns their exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cellog-tests")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	Binary = filepath.Join(dir, "cellog")
	args := []string{"build", "-o", Binary}
	if Race {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/cellog/cellog/cmd/cellog")...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build cellog:", err)
		return 1
	}
	return m.Run()
}

// Cellog runs a command and returns what it wrote to standard output; a failure
// is logged.
func Cellog(t *testing.T, args ...string) (stdout string, exit int) {
	t.Helper()
	stdout, stderr, exit := Try(t, args...)
	if exit != 0 {
		t.Logf("cellog %s: exit %d\n%s%s", args[0], exit, Tail(stderr), Tail(stdout))
	}
	return stdout, exit
}

// Try is Cellog for a command that may well fail.
func Try(t *testing.T, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var code *exec.ExitError
	if err != nil && !errors.As(err, &code) {
		t.Fatalf("cellog %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// WaitFor polls until fn returns nil, and fails with its last error.
func WaitFor(t *testing.T, limit time.Duration, fn func() error) {
	t.Helper()
	if err := Poll(t, limit, fn); err != nil {
		t.Fatal(err)
	}
}

// Poll polls until fn returns nil, or returns its last error.
func Poll(t *testing.T, limit time.Duration, fn func() error) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	if t.Context().Err() != nil { // a clean-up
		ctx, cancel = context.WithTimeout(context.Background(), limit)
	}
	defer cancel()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", limit, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Seed returns CELLOG_SEED, or another seed each time, and says which.
func Seed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("CELLOG_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("CELLOG_SEED=%q: want a number", s)
		}
	}
	t.Logf("replay with CELLOG_SEED=%d", seed)
	return seed
}

// FreeAddr returns an address where nobody listened just now.
func FreeAddr(t *testing.T) string {
	t.Helper()
	p, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(p))
}

// Gone says whether a process has ended, even if its parent did not notice.
func Gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	i := bytes.LastIndexByte(b, ')')
	return i > 0 && i+2 < len(b) && b[i+2] == 'Z'
}

// Flavour is the kind of server that CELLOG_TEST_FLAVOUR asks for.
func Flavour() string {
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		return f
	}
	return "mariadb"
}

// Tail is the end of a long text.
func Tail(s string) string { return s[max(0, len(s)-8000):] }
