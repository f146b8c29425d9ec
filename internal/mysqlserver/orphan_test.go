package mysqlserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentProcess is what this binary does as the parent that gets killed.
func parentProcess(dir string) int {
	s, err := Start(context.Background(), Config{Dir: dir, ServerID: 1, Flavour: flavour()})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("pid", s.PID())
	<-s.Done()
	return 2
}

func TestKillingTheParentLeavesNoServer(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "parent", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid ")))
	if err != nil {
		t.Fatal(line)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("server %d: %v", pid, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	waitFor(t, 10*time.Second, func() error {
		if gone(pid) {
			return nil
		}
		return fmt.Errorf("server %d still lives", pid)
	})
	s := newServer(t, Config{Dir: dir}) // and the directory is free
	if got := query(t, s, "SELECT 1"); got != "1" {
		t.Error(got)
	}
}

// gone reports that no process has the pid, or only one that nobody waited for.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

func waitFor(t *testing.T, max time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(max)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
