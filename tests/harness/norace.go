//go:build !race

package harness

// Race says that the tests run with the race detector.
const Race = false
