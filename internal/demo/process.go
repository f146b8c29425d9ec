package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/triggers"
)

// BillingConfig is what the billing process needs to know.
type BillingConfig struct {
	// URL is a worker's base URL, Gateway that of the card gateway.
	URL, Gateway string
	Kafka        kafka.Config
	Prefix       string
	Datastore    string
	Logger       *slog.Logger
}

// RunBilling is the billing process: it charges for every BASE cell until ctx
// ends.
func RunBilling(ctx context.Context, cfg BillingConfig) error {
	c, err := client.New(client.Config{URLs: []string{cfg.URL}})
	if err != nil {
		return err
	}
	defer c.Close()
	// Each row under way has its own connection.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	defer transport.CloseIdleConnections()
	b := &Billing{
		Cells: c, Datastore: cfg.Datastore, Gateway: cfg.Gateway, By: fmt.Sprintf("billing process %d", os.Getpid()),
		HTTP: &http.Client{Transport: transport},
	}
	// A killed process holds its partitions for the session timeout, and 6 s
	// is the least that brokers allow by default.
	rt, err := triggers.New(triggers.Config{Brokers: cfg.Kafka.Addrs, ClientID: cfg.Kafka.ClientID, Prefix: cfg.Prefix, SessionTimeout: 6 * time.Second, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	if err := rt.On(cfg.Datastore, columnBase, "demo-billing", b.Handle, triggers.Backoff(20*time.Millisecond, 2*time.Second)); err != nil {
		return err
	}
	return rt.Run(ctx)
}
