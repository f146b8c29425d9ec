// Package app puts the parts together: it is the one place, with the commands
// and tests/life, where the stages meet.
//
//	w, err := app.NewWorker(cfg, env)    // HTTP, ingest, storage
//	t, err := app.NewTailers(cfg, env)   // one tailer per storage cluster
//	i, err := app.NewIndexer(cfg, env)   // index tables
//	err = w.Start(ctx); …; err = w.Stop(ctx)
//
// Dev runs all of them in one process, over private servers of deploy/local.
//
// Every role has Start and Stop, both safe twice, and Ready, which says why it
// cannot do its work. The readiness of a role is added to its process's admin
// server under the role's name. What fails after Start is on Failed.
//
// Neighbours: a role starts when at least one MySQL server answers, and keeps
// trying by itself when servers or brokers come and go afterwards.
package app
