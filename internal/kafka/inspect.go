package kafka

import "context"

// BrokerVersion is what a broker's API tells of its version.
type BrokerVersion struct {
	// Guess is the version, such as v4.0: brokers do not say it themselves, so
	// a newer one than this client knows shows as the newest that it knows.
	Guess string
	// SoundTransactions says that every transaction gets an epoch of its own
	// (KIP-890, version 5 of EndTxn, Kafka 4.0), so that a late record of an
	// aborted one cannot get into the next.
	SoundTransactions bool
}

// endTxn is the key of the EndTxn request.
const endTxn = 26

// Versions returns what each broker tells of its version.
func (a *Admin) Versions(ctx context.Context) (map[int32]BrokerVersion, error) {
	all, err := a.adm.ApiVersions(ctx)
	if err != nil {
		return nil, convert(err)
	}
	out := make(map[int32]BrokerVersion, len(all))
	for id, v := range all {
		if v.Err != nil {
			return nil, convert(v.Err)
		}
		newest, ok := v.KeyMaxVersion(endTxn)
		out[id] = BrokerVersion{Guess: v.VersionGuess(), SoundTransactions: ok && newest >= 5}
	}
	return out, nil
}

// CheckTopic returns nil if a topic is as spec wants it, ErrTopicMismatch with
// the command that mends it, or ErrUnknownTopic. It changes nothing.
func (a *Admin) CheckTopic(ctx context.Context, spec TopicSpec) error {
	n, err := a.Partitions(ctx, spec.Name)
	if err != nil {
		return err
	}
	return a.verify(ctx, spec, n)
}
