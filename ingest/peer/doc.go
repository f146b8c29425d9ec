// Package peer carries cells to the home worker of their shard, one hop, so that
// a shard's cells share transactions whatever worker each client asks. The
// shape of what it carries is in schemas/forward.
//
// It promises that an error says whether the other worker may have stored
// anything, and that nothing is sent twice. It does not know who is whose home,
// does not try again, and has no timeout but its caller's.
package peer
