// Package archtest keeps the bones of the project straight by tests alone: it
// has no code of its own to import.
//
// It reads every Go file of the module and checks that
//
//   - imports follow the arrows of the table in arrows_test.go, where every
//     exception stands in a row with its reason, and no row speaks of a
//     package that is gone or of an exception that nobody needs any more;
//   - a library's types stay in the library's home;
//   - every package says in a doc comment what it is for;
//   - every exported identifier has a doc comment;
//   - no file has more than 500 lines;
//   - docs/guarantees.md names only tests that exist.
//
// It does not build anything and needs neither MySQL nor Kafka.
package archtest
