package cdc

import "context"

// VerifyFunc is Session.Verify.
type VerifyFunc func(ctx context.Context, shards map[ShardKey]VerifyShard) (map[ShardKey]Verified, error)

// Examine tells what a tailer would find that starts from these positions on
// this node, by the same checks, without opening a session: the shards that it
// would stop, with the reason, or why it would not take the node. merged is as
// in Config.
func Examine(ctx context.Context, cluster string, node Node, pos Positions, merged func(datastore string) bool, verify VerifyFunc) (map[ShardKey]error, error) {
	cfg, err := Config{
		Cluster: cluster, Merged: merged, Publisher: noPublisher{},
		Nodes: func(context.Context) ([]Node, error) { return []Node{node}, nil },
	}.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Tailer{cfg: cfg, metrics: newMetrics(nil, cluster, nil, nil)}
	sess := verifier{verify: verify}
	seq := t.newSequencer(node, sess, nil)
	seq.load(pos.Shards)
	return t.check(ctx, sess, node, seq, pos)
}

// noPublisher and verifier stand in for the Kafka side of who only looks: what
// is not here is not called.
type noPublisher struct{ Publisher }

type verifier struct {
	Session
	verify VerifyFunc
}

// Verify fetches the records that the positions name.
func (v verifier) Verify(ctx context.Context, shards map[ShardKey]VerifyShard) (map[ShardKey]Verified, error) {
	return v.verify(ctx, shards)
}
