// Package obs is what an operator sees of a process: its log, its metrics and
// its health.
//
//	log := obs.NewLogger(os.Stderr, obs.LogConfig{Level: "info"})
//	admin, err := obs.New(obs.Config{Listen: "127.0.0.1:9180", Log: log})
//	admin.AddCheck("mysql", func(ctx context.Context) error { … })
//	err = admin.Start(ctx)
//
// The admin server has
//
//   - /livez: 200 as long as the process can answer at all;
//   - /readyz: 200 when every named check passes, else 503 with what fails;
//     ?verbose lists all, ?format=json gives them to machines;
//   - /metrics: the Prometheus registry that Registry returns;
//   - /debug/pprof/: only when asked for.
//
// Checks run concurrently, each with a deadline, so one that hangs makes the
// answer late by that deadline only. Before Start has been called on the parts
// that they watch, checks fail, and readiness with them. Start and Stop are
// safe twice; a failure of the listener after Start is on Err.
//
// The server is plain HTTP without authentication: it belongs on an address
// that only operators and probes reach.
package obs
