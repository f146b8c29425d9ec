// Package harness is what the suites of whole processes share: the cellog
// binary, seeds that can be replayed, waiting for what must come true, and links
// between processes that can be cut, slow or silent.
//
//	func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
//	…
//	seed := harness.Seed(t)
//	out, code := harness.Cellog(t, "verify", "trips", "--config", file)
//
// Only tests import it.
package harness
