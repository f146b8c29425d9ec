// Command cellog is the one binary of the project: it runs the roles (worker,
// tailer, indexer, trigger), everything at once for development (dev), and the
// tools of operators and developers (datastore, tail, cell, log, consume, index,
// import, verify, doctor, demo).
//
// Exit codes: 0 all well, 1 it failed, 2 it was called wrongly, 3 it ran and
// found differences (verify, doctor, demo, tail). Results go to standard output,
// everything else to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// The exit codes of every command.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitDifferences = 3
)

// gcPercent lets the heap grow to five times what is in use before it is
// collected, unless GOGC says otherwise. What is in use is small, so with the
// default of 100 the collector ran all the time: a tenth of a worker's time
// under full load (bench/put).
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process around it, so that tests can call it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitFailure
	var ee exitError
	if errors.As(err, &ee) {
		code = ee.code
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(stderr, "cellog:", text)
	}
	return code
}

// exitError is an error with the exit code it deserves.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// usageError marks err as the caller's mistake.
func usageError(format string, args ...any) error {
	return exitError{exitUsage, fmt.Errorf(format, args...)}
}
