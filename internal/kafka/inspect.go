package kafka

import "context"

// Versions returns each broker's version as its API tells it, such as v4.0;
// brokers do not say it themselves, so a newer one than this client knows
// shows as the newest that it knows.
func (a *Admin) Versions(ctx context.Context) (map[int32]string, error) {
	all, err := a.adm.ApiVersions(ctx)
	if err != nil {
		return nil, convert(err)
	}
	out := make(map[int32]string, len(all))
	for id, v := range all {
		if v.Err != nil {
			return nil, convert(v.Err)
		}
		out[id] = v.VersionGuess()
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
