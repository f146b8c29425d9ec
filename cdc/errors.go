package cdc

import "errors"

var (
	// ErrPositionLost is returned by Source.Run when the server has purged the
	// binlog after the position, or does not know the position.
	ErrPositionLost = errors.New("the server's binlog does not reach back to the position")

	// ErrFenced is returned by a session when another tailer, or a promotion,
	// took the cluster over.
	ErrFenced = errors.New("fenced by another tailer or a promotion")

	// ErrRefused is returned when the broker refuses a record for what it is.
	ErrRefused = errors.New("the broker refuses the record")

	// ErrTailLost is returned for a shard whose last published record is not
	// where its position says: the topic was truncated, recreated or written
	// by somebody else.
	ErrTailLost = errors.New("the topic lost records that were final")

	// ErrShard marks errors that stop one shard and leave the others alone.
	ErrShard = errors.New("shard stopped")

	// ErrNotOpened is why a tailer waits when no promotion or `datastore
	// create` has opened the cluster, or a claim stands that was not opened.
	ErrNotOpened = errors.New("the cluster is not open")

	// ErrNodeBehind is why a node is not tailed: it does not hold what was
	// published already.
	ErrNodeBehind = errors.New("the node does not hold what was published already")

	// ErrNodeSilent is why a session ends: the node shows nothing, although the
	// master writes.
	ErrNodeSilent = errors.New("the node shows nothing of what is written on the master")

	// ErrNodeDiffers is why a node is not tailed: another cell stands where a
	// published one should.
	ErrNodeDiffers = errors.New("the node holds another cell than the one published")

	// ErrPaused is why a tailer publishes nothing although it could: an
	// operator has paused its cluster.
	ErrPaused = errors.New("paused")

	// ErrNoNode is returned when there is no node to tail.
	ErrNoNode = errors.New("no node of the cluster can be tailed")
)
