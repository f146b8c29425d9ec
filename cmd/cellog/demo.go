package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/examples/trips"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/demo"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/internal/verify"
)

func newDemo() *cobra.Command {
	var dev devFlags
	var format string
	var d demo.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play a city in fast motion, and prove that nothing was lost or done twice",
		Long: `Start what "cellog dev" starts, in a folder of its own that is removed afterwards, and let a city of riders, drivers
and trips live on it. Every trip's end is a BASE cell. A billing trigger, in a process of its own, charges a flaky card
gateway and writes each attempt as a STATUS cell; it is killed twice, between a charge and its STATUS. Notes and fare
adjustments come late. An index is asked for "this driver's trips in this city since".

When the time is over, the load stops, the stream drains, and two things are compared: entity tables, Kafka and indexes
(as "cellog verify" does), and the gateway's own books with the trips: each charged exactly once, or declined.

Exit codes: 0 clean, 1 it could not be played to its end, 3 differences.`,
		Example: `  cellog demo --for 60s
  cellog demo --for 10m --rate 300 --seed 7 --format json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if err := d.CheckPlay(); err != nil {
				return exitError{exitUsage, err}
			}
			if !cmd.Flags().Changed("seed") {
				d.Seed = rand.Uint64() >> 32
			}
			r, err := playDemo(cmd, &dev, d)
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			} else {
				r.Print(cmd.OutOrStdout())
			}
			if err == nil && !r.OK {
				return exitError{exitDifferences, fmt.Errorf("the demo found differences; play it again with --seed %d", r.Seed)}
			}
			return err
		},
	}
	dev.add(cmd)
	f := cmd.Flags()
	for name, value := range map[string]string{"data-dir": "", "listen": "127.0.0.1:0", "admin-listen": "127.0.0.1:0", "log-level": "error"} {
		flag := f.Lookup(name)
		must(flag.Value.Set(value))
		flag.DefValue = value
	}
	f.Lookup("data-dir").Usage = "where the servers and the broker keep their data (default: a temporary folder)"
	f.Lookup("schemas").Usage = "directory of index definitions (default: the demo's own)"
	formatFlag(cmd, &format)
	f.DurationVar(&d.For, "for", 60*time.Second, "how long the city lives")
	f.Uint64Var(&d.Seed, "seed", 0, "the seed of the city (default: a random one, which is printed)")
	f.Float64Var(&d.Rate, "rate", 100, "trips that end in a second")
	cmd.AddCommand(newDemoBilling())
	return cmd
}

// playDemo starts everything, plays, and stops everything.
func playDemo(cmd *cobra.Command, dev *devFlags, d demo.Config) (_ *demo.Report, err error) {
	temp, err := os.MkdirTemp("", "cellog-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	temporary := dev.dataDir == ""
	if temporary {
		dev.dataDir = filepath.Join(temp, "data")
	}
	if dev.schemas == "" {
		dev.schemas = filepath.Join(temp, "schemas")
		if err := os.CopyFS(dev.schemas, trips.Schemas()); err != nil {
			return nil, err
		}
	}
	if err := dev.check(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out := cmd.ErrOrStderr()
	fmt.Fprintf(out, "seed %d; starting servers and broker\n", d.Seed)
	cfg := dev.config(out)
	all, err := startDev(cmd.Context(), dev, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopDev(dev, all)) }()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		select {
		case err := <-all.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()

	brokers, prefix := all.Config().Kafka.Brokers, all.Config().Kafka.Prefix
	d.URL, d.Kafka, d.Prefix, d.Datastore = all.URL(), kafka.Config{Addrs: brokers, ClientID: "cellog-demo"}, prefix, dev.datastore
	d.Out, d.Live = out, terminal(out)
	d.Billing = func(gateway string) *exec.Cmd {
		c := exec.Command(self, "demo", "billing", "--url", d.URL, "--gateway", gateway, "--kafka", strings.Join(brokers, ","),
			"--prefix", prefix, "--datastore", d.Datastore)
		c.Stderr = out
		return c
	}
	d.Verify = func(ctx context.Context) (verify.Report, error) {
		shown := 0
		return app.Verify(ctx, all.Config(), cfg.Env, d.Datastore, verify.Config{Detail: func(text string) {
			if shown++; shown <= maxDetails {
				fmt.Fprintln(out, text)
			}
		}})
	}
	return demo.Run(ctx, d)
}

// newDemoBilling is the process that the demo starts and kills.
func newDemoBilling() *cobra.Command {
	var b demo.BillingConfig
	cmd := &cobra.Command{
		Use:    "billing",
		Short:  "The billing trigger of the demo, which starts it",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b.Logger = obs.NewLogger(cmd.ErrOrStderr(), obs.LogConfig{Level: "error"})
			b.Kafka.ClientID = "cellog-demo-billing"
			return demo.RunBilling(cmd.Context(), b)
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.URL, "url", "", "base URL of a worker")
	f.StringVar(&b.Gateway, "gateway", "", "URL of the card gateway")
	f.StringSliceVar(&b.Kafka.Addrs, "kafka", nil, "Kafka brokers")
	f.StringVar(&b.Prefix, "prefix", "", "prefix of the topics")
	f.StringVar(&b.Datastore, "datastore", "trips", "the datastore")
	return cmd
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
