package triggers_test

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/triggers"
)

// A program with one trigger: it runs until it is interrupted, and may run in
// as many copies as there are partitions.
func Example() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	rt, err := triggers.New(triggers.Config{Brokers: []string{"127.0.0.1:9092"}, Logger: log})
	if err != nil {
		log.Error("triggers", "err", err)
		return
	}
	err = rt.On("trips", "BASE", "billing", func(ctx context.Context, c cellog.Cell) error {
		// The same cell may come again: the key makes the charge idempotent.
		return charge(ctx, c.Key.String(), c.Body, triggers.Generation(ctx))
	}, triggers.FromZero(), triggers.Backoff(100*time.Millisecond, time.Minute))
	if err != nil {
		log.Error("triggers", "err", err)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := rt.Run(ctx); err != nil {
		log.Error("triggers", "err", err)
	}
}

func charge(context.Context, string, []byte, int64) error { return nil }
