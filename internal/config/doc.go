// Package config reads the one configuration file that all roles share
// (worker, tailer, indexer) and says exactly what is wrong with it.
//
//	cfg, err := config.Load("cellog.yml", os.Getenv)
//
// It promises:
//
//  1. A key that it does not know, a key given twice, a value of the wrong
//     type and a value out of range are errors with file, line and column.
//     All mistakes of meaning are reported at once.
//  2. What is left out gets the default that docs/config.md states (a test
//     compares the two).
//  3. Passwords come from a file or from the environment, never from the
//     configuration itself, and a Secret never prints what it holds.
//
// It does not connect to anything: that a server answers, or that two servers
// are of one cluster, is for the roles and for `cellog doctor` to find out.
package config
