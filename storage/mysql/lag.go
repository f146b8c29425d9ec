package mysql

import (
	"context"
	"time"

	"github.com/cellog/cellog"
)

// lagFor is how long a node's newest heartbeat is taken from memory.
const lagFor = 250 * time.Millisecond

// beat is the newest heartbeat that a node was seen to have.
type beat struct {
	written time.Time // zero: none
	looked  time.Time
}

// lag returns the age of the newest heartbeat of its master that a node has.
func (n *node) lag(ctx context.Context) time.Duration {
	n.mu.Lock()
	b := n.beat
	n.mu.Unlock()
	if time.Since(b.looked) > lagFor {
		b.looked = time.Now()
		if err := n.read.QueryRowContext(ctx, "SELECT written_at FROM cellog_meta.heartbeats WHERE cluster = ?", n.cluster).Scan(&b.written); err != nil {
			b.written = time.Time{} // none yet, or the node has just gone
		}
		n.mu.Lock()
		n.beat = b
		n.mu.Unlock()
	}
	if b.written.IsZero() {
		return cellog.UnknownLag
	}
	return max(time.Since(b.written), 0) // the tailer's clock may be ahead of ours
}
