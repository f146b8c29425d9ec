//go:build race

package harness

// Race says that the tests run with the race detector; then cellog does too.
const Race = true
