package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/ingest/client"
)

// IndexName is the index that the demo asks; its definition is
// examples/trips/schemas/driver_partner_index.yaml.
const IndexName = "driver_partner_index"

// each calls fn for all items, some at a time.
func each[T any](ctx context.Context, items []T, fn func(T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, item := range items {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return fn(item) })
	}
	return g.Wait()
}

// tripsSince asks the index for a driver's trips in a city since a time.
func tripsSince(ctx context.Context, c *client.Client, datastore string, driver, city uuid.UUID, since time.Time) (map[uuid.UUID]bool, error) {
	q := url.Values{
		"driver_partner_uuid": {driver.String()}, "city_uuid": {city.String()},
		"trip_created_at.gte": {since.UTC().Format(time.RFC3339Nano)}, "limit": {"1000"},
	}
	rows := make(map[uuid.UUID]bool)
	for {
		answer, err := c.IndexQuery(ctx, datastore, IndexName, q)
		if err != nil {
			return nil, fmt.Errorf("index query: %w", err)
		}
		var page struct {
			Entries []struct {
				Row uuid.UUID `json:"row_key"`
			} `json:"entries"`
			Next *string `json:"next"`
		}
		if err := json.Unmarshal(answer, &page); err != nil {
			return nil, fmt.Errorf("index query: %w", err)
		}
		for _, e := range page.Entries {
			rows[e.Row] = true
		}
		if page.Next == nil || *page.Next == "" {
			return rows, nil
		}
		q.Set("cursor", *page.Next)
	}
}

// asker asks the index now and then, while the city lives, how soon it knows
// a trip.
type asker struct {
	visible lags

	mu      sync.Mutex
	queries int
	late    int // trips that it did not know 10 s after their put was answered
}

func (a *asker) run(ctx context.Context, cfg Config, c *client.Client, w *watch) error {
	next := 0
	for sleepUntil(ctx, time.Now().Add(time.Duration(50+rand.IntN(100))*time.Millisecond)) {
		_, _, acked, _ := w.counts()
		if acked <= next {
			continue
		}
		next = acked
		t, at := w.acknowledgedAt(acked - 1)
		for {
			rows, err := tripsSince(ctx, c, cfg.Datastore, t.Driver, t.City, t.Created)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			a.mu.Lock()
			a.queries++
			a.mu.Unlock()
			lag := time.Since(at)
			if rows[t.Row] {
				a.visible.add(lag)
				break
			}
			if lag > 10*time.Second {
				a.mu.Lock()
				a.late++
				a.mu.Unlock()
				break
			}
			if !sleepUntil(ctx, time.Now().Add(2*time.Millisecond)) {
				return nil
			}
		}
	}
	return nil
}

func (a *asker) counts() (queries, late int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.queries, a.late
}

// checkIndex compares the index's answer for each driver, since the middle of
// his trips, with the trips themselves, and returns the number of wrong ones.
func checkIndex(ctx context.Context, c *client.Client, datastore string, trips []*Trip) (asked, wrong int, err error) {
	byDriver := make(map[uuid.UUID][]*Trip)
	for _, t := range trips {
		byDriver[t.Driver] = append(byDriver[t.Driver], t)
	}
	var all [][]*Trip
	for _, ts := range byDriver {
		all = append(all, ts)
	}
	var mu sync.Mutex
	err = each(ctx, all, func(ts []*Trip) error {
		since := ts[len(ts)/2].Created
		want := 0
		rows, err := tripsSince(ctx, c, datastore, ts[0].Driver, ts[0].City, since)
		if err != nil {
			return err
		}
		bad := false
		for _, t := range ts {
			if !t.Created.Before(since) {
				want++
				bad = bad || !rows[t.Row]
			}
		}
		mu.Lock()
		defer mu.Unlock()
		asked++
		if bad || len(rows) != want {
			wrong++
		}
		return nil
	})
	return asked, wrong, err
}
