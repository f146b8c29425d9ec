package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// The word that a cluster is paused is a row on its master, not a record in its
// positions topic: that one is written under the tailer's transactional id
// alone, so whoever wrote there would throw the tailer out, and nobody could
// pause while Kafka is away. The row replicates, so it outlives a promotion, and
// any node can tell a tailer that starts while the master is away.

// The longest that an operator's name and reason may be, in characters.
const (
	MaxPauseBy     = 100
	MaxPauseReason = 400
)

// pausePatience bounds how long one node may take to say whether its cluster is
// paused: the others' word is enough.
const pausePatience = time.Second

// SetPause pauses a cluster's tailer, or resumes it, from p.Paused, p.By and
// p.Reason, and returns what now stands and on which node it was written. It
// needs the cluster's master alone. A tailer takes note within seconds.
func SetPause(ctx context.Context, cfg *config.Config, cluster string, p cdc.Pause) (stands cdc.Pause, node string, err error) {
	c, err := cfg.FindCluster(cluster)
	if err != nil {
		return p, "", err
	}
	if err := errors.Join(CheckPauseText("by", p.By, MaxPauseBy), CheckPauseText("reason", p.Reason, MaxPauseReason)); err != nil {
		return p, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*nodePatience)
	defer cancel()
	pools, err := openPools(&config.Config{Clusters: []config.Cluster{*c}}, AdminAccount, mysqlconn.Config{MaxOpen: 1, KeepReadOnly: true})
	if err != nil {
		return p, "", err
	}
	defer func() { err = errors.Join(err, pools.close()) }()
	s := servers{cluster: c, pools: pools}
	masters, err := s.masters(ctx)
	if len(masters) != 1 {
		return p, "", errors.Join(fmt.Errorf("cluster %s has %d nodes that take writes (%s), want one: see `cellog cluster list %s`", cluster, len(masters), strings.Join(masters, ", "), cluster), err)
	}
	db := pools.get(cluster, masters[0])
	// changed_at grows also where this master's clock is behind an earlier one's.
	_, err = db.ExecContext(ctx, "INSERT INTO cellog_meta.pauses (cluster, paused, who, reason, changed_at) VALUES (?, ?, ?, ?, UTC_TIMESTAMP(6)) "+
		"ON DUPLICATE KEY UPDATE paused = VALUES(paused), who = VALUES(who), reason = VALUES(reason), changed_at = GREATEST(changed_at + INTERVAL 1 MICROSECOND, VALUES(changed_at))",
		cluster, p.Paused, p.By, p.Reason)
	if mysqlconn.IsMissing(err) {
		err = fmt.Errorf("node %s has no table cellog_meta.pauses: run `cellog datastore create` for a datastore that is there, with its numbers; it makes what is missing: %w", masters[0], err)
	}
	if err != nil {
		return p, "", err
	}
	stands, err = readPause(ctx, db, cluster)
	return stands, masters[0], err
}

// CheckPauseText returns an error that names the flag unless text is one line of
// at most so many characters.
func CheckPauseText(flag, text string, most int) error {
	if !utf8.ValidString(text) || utf8.RuneCountInString(text) > most || strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("--%s: want one line of at most %d characters", flag, most)
	}
	return nil
}

// PauseWords say whether a cluster is paused, by whom, when and why.
func PauseWords(p cdc.Pause) string {
	text := "not paused"
	if p.Paused {
		text = "paused"
	}
	if !p.At.IsZero() {
		text += fmt.Sprintf(", by %s at %s", p.By, p.At.UTC().Format(time.RFC3339))
	}
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

func readPause(ctx context.Context, db *sql.DB, cluster string) (p cdc.Pause, err error) {
	err = db.QueryRowContext(ctx, "SELECT paused, who, reason, changed_at FROM cellog_meta.pauses WHERE cluster = ?", cluster).Scan(&p.Paused, &p.By, &p.Reason, &p.At)
	if errors.Is(err, sql.ErrNoRows) || mysqlconn.IsMissing(err) {
		return cdc.Pause{}, nil // nobody ever did
	}
	return p, err
}

// paused returns the newest word of all nodes that answer: a minion may lag, and
// a master may be away.
func (s *servers) paused(ctx context.Context) (newest cdc.Pause, err error) {
	ctx, cancel := context.WithTimeout(ctx, pausePatience)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	answers := 0
	var wg sync.WaitGroup
	for _, n := range s.cluster.Nodes {
		wg.Go(func() {
			p, err := readPause(ctx, s.pools.get(s.cluster.Name, n.Name), s.cluster.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
				return
			}
			answers++
			if p.At.After(newest.At) {
				newest = p
			}
		})
	}
	wg.Wait()
	if answers > 0 {
		return newest, nil
	}
	return newest, fmt.Errorf("cluster %s: no node says whether it is paused: %w", s.cluster.Name, errors.Join(errs...))
}
