package main

import (
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"cellog": main})
}

// The scripts run the program as a user would; exit codes by `exits`.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			for _, k := range []string{"CELLOG_MYSQLD", "CELLOG_TEST_FLAVOUR", "XDG_CACHE_HOME"} {
				if v := os.Getenv(k); v != "" {
					e.Setenv(k, v)
				}
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "until": until, "waitfile": waitFile},
	})
}

// exits CODE COMMAND ARGS… runs a command that must end with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// until PATTERN COMMAND ARGS… runs a command again and again, whatever its exit
// code, until its standard output matches: for what takes effect after a while.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND ARGS…")
	}
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	for stop := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...) // what it says counts
		if want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(stop) {
			ts.Fatalf("%s does not say %s", args[1], args[0])
		}
	}
}

// waitfile FILE waits until a file is there: a background command's sign that
// it is up.
func waitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	for stop := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		if time.Now().After(stop) {
			ts.Fatalf("%s does not appear", args[0])
		}
	}
}

// Ctrl-C ends a command that waits for standard input.
func TestInterruptible(t *testing.T) {
	stdin, typed := io.Pipe()
	defer typed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	r := interruptible(ctx, stdin)
	if _, err := io.WriteString(typed, "abc"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if text, err := io.ReadAll(r); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := io.ReadAll(interruptible(t.Context(), strings.NewReader("abc"))); string(text) != "abc" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// Every command says what it does, and every one that does something shows how
// it is called.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		if c.Short == "" {
			t.Errorf("%s has no short help", c.CommandPath())
		}
		if !c.HasSubCommands() && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if line != "" && !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: example %q is not indented", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
}
