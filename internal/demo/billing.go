package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

// MaxAttempts is how often billing charges a card before it gives up: each
// attempt has a key and a STATUS cell of its own.
const MaxAttempts = 3

// The columns of the demo.
const (
	columnBase       = "BASE"
	columnStatus     = "STATUS"
	columnNotes      = "NOTES"
	columnAdjustment = "FARE_ADJUSTMENT"
)

// Status is the body of a STATUS cell: what came of the attempt that is its
// ref_key.
type Status struct {
	Outcome string `json:"outcome"`
	Amount  string `json:"amount"`
	// By and At tell deliveries apart: two that race write different bodies,
	// and one of them is told so.
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// cells is what billing needs of the client.
type cells interface {
	Put(ctx context.Context, datastore string, p cellog.Put) (client.PutResult, error)
	Get(ctx context.Context, datastore string, k cellog.Key, o client.ReadOptions) (client.Cell, error)
	Newest(ctx context.Context, datastore string, k cellog.Key, o client.ReadOptions) (client.Cell, error)
}

// Billing charges each trip once. It may be killed at any point and may see a
// trip any number of times:
//
//  1. It reads the row's newest STATUS: what is decided stays.
//  2. It charges with the attempt's key; the gateway knows the key if an
//     earlier delivery got so far.
//  3. It writes the attempt's STATUS. A conflict means that another delivery
//     finished it: what stands there counts.
type Billing struct {
	// Cells is a *client.Client.
	Cells cells
	// Datastore holds the trips.
	Datastore string
	// Gateway is the card gateway's URL.
	Gateway string
	// By names this process in STATUS cells.
	By string
	// HTTP posts charges; nil means http.DefaultClient.
	HTTP *http.Client
}

// Handle is the trigger's function for BASE cells.
func (b *Billing) Handle(ctx context.Context, c cellog.Cell) error {
	var trip struct {
		Fare string `json:"fare"`
	}
	if err := json.Unmarshal(c.Body, &trip); err != nil {
		return fmt.Errorf("trip %s: %w", c.Row, err)
	}
	attempt := cellog.RefKey(1)
	last, err := b.Cells.Newest(ctx, b.Datastore, cellog.Key{Row: c.Row, Column: columnStatus}, client.ReadOptions{})
	switch {
	case err == nil:
		st, err := parseStatus(last.Body)
		if err != nil || st.Outcome == Charged {
			return err
		}
		attempt = last.Ref + 1
	case !client.IsNotFound(err):
		return err
	}
	for ; attempt <= MaxAttempts; attempt++ {
		st, err := b.attempt(ctx, c.Row, attempt, trip.Fare)
		if err != nil || st.Outcome == Charged {
			return err
		}
	}
	return nil // declined for good
}

// attempt charges once and writes the outcome down.
func (b *Billing) attempt(ctx context.Context, row uuid.UUID, n cellog.RefKey, amount string) (Status, error) {
	outcome, err := b.charge(ctx, Charge{Key: ChargeKey(row, n), Amount: amount})
	if err != nil {
		return Status{}, err
	}
	st := Status{Outcome: outcome, Amount: amount, By: b.By, At: time.Now().UTC()}
	k := cellog.Key{Row: row, Column: columnStatus, Ref: n}
	_, err = b.Cells.Put(ctx, b.Datastore, cellog.Put{Key: k, Body: mustJSON(st)})
	if !client.IsConflict(err) {
		return st, err
	}
	stands, err := b.Cells.Get(ctx, b.Datastore, k, client.ReadOptions{})
	if err != nil {
		return Status{}, err
	}
	return parseStatus(stands.Body)
}

// ChargeKey is the idempotency key of an attempt.
func ChargeKey(row uuid.UUID, attempt cellog.RefKey) string {
	return row.String() + "/" + strconv.FormatInt(int64(attempt), 10)
}

func parseStatus(body []byte) (Status, error) {
	var st Status
	if err := json.Unmarshal(body, &st); err != nil {
		return st, fmt.Errorf("STATUS: %w", err)
	}
	if st.Outcome != Charged && st.Outcome != Declined {
		return st, fmt.Errorf("STATUS: outcome is %.20q, want %s or %s", st.Outcome, Charged, Declined)
	}
	return st, nil
}

func (b *Billing) charge(ctx context.Context, c Charge) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.Gateway, bytes.NewReader(mustJSON(c)))
	if err != nil {
		return "", err
	}
	h := b.HTTP
	if h == nil {
		h = http.DefaultClient
	}
	resp, err := h.Do(req)
	if err != nil {
		return "", fmt.Errorf("card gateway: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return "", fmt.Errorf("card gateway: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("card gateway: HTTP %d: %.100s", resp.StatusCode, bytes.TrimSpace(text))
	}
	var e Entry
	if err := json.Unmarshal(text, &e); err != nil {
		return "", fmt.Errorf("card gateway: %w", err)
	}
	if e.Key != c.Key || e.Outcome != Charged && e.Outcome != Declined {
		return "", fmt.Errorf("card gateway: it answered %.60q for the key %s", e.Key, c.Key)
	}
	return e.Outcome, nil
}
