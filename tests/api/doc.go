// Package api tests the HTTP API over the real store on a real MySQL or
// MariaDB: what a client may send and gets, and in which order cells come out
// of many clients' puts. It holds tests only.
package api
