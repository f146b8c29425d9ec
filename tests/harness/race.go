//go:build race

package harness

// race says that the tests run with the race detector; then cellog does too.
const race = true
