// Package failpoint names the places between two steps at which a crash, a
// stall or a changed behaviour is worth a test.
//
//	failpoint.Hit("tailer/before-commit")
//
// Without a hook a point costs one atomic load. The hook belongs to tests: no
// flag, environment variable or configuration key reaches it, so nothing in
// production can turn one on.
package failpoint
