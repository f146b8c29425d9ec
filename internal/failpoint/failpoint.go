package failpoint

import "sync/atomic"

var hook atomic.Pointer[func(name string) bool]

// Set makes f the answer to every Hit until the next Set; nil takes it away.
// f runs on the goroutine that hits the point, possibly on several at once; it
// may kill the process, block, or do nothing.
func Set(f func(name string) bool) {
	if f == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&f)
}

// Hit marks a place at which a test may want the process to die, stall or go
// another way. It returns what the hook answers, false without one.
func Hit(name string) bool {
	if f := hook.Load(); f != nil {
		return (*f)(name)
	}
	return false
}
