package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/acks"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/verify"
)

// maxDetails is how many differences are printed.
const maxDetails = 50

func newVerify() *cobra.Command {
	var t target
	var format, journal string
	var c verify.Config
	cmd := &cobra.Command{
		Use:   "verify DATASTORE",
		Short: "Compare every shard's entity table with Kafka and the indexes",
		Long: `Compare every cell with its record in Kafka (committed records only), with that in the merged topic if there is one,
and with its entry in every index. It works while writes go on: it compares up to where the logs ended when it started,
after waiting for those cells to become final. The first differences are printed to standard error.

Every difference counts once, under one name: missing (a cell has no record, or a record no cell), duplicates, out of
order, holes (in a shard's log or in ce_sequence, or rows above shard_log's last number), body mismatch (of body, key,
epoch or time; foreign records; damaged cells). --format json has the numbers of the merged topic under "merged".

--acks FILE also holds a journal of what clients were answered against what is stored (--format json: under "acks"): lost,
other body, two bodies acknowledged, ghosts (stored though every attempt was refused), unnamed (rejected, and the record
does not name the winner), waiting (answered 202, not in yet).
A line of it is {"status":201,"row_key":"…","column":"BASE","ref_key":1,"body":…}, one for each attempt at a put; status 0
means that no answer came.

Exit codes: 0 no difference, 1 it could not compare, 3 differences.`,
		Example: `  cellog verify trips
  cellog verify trips --format json --config cellog.yml
  cellog verify trips --acks answers.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if c.Parallel < 1 || c.Parallel > 256 {
				return usageError("--parallel %d: want 1 to 256", c.Parallel)
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			bar := newProgress(cmd.ErrOrStderr(), "verifying "+args[0], 0)
			defer bar.abort()
			shown := 0
			c.Detail = func(text string) {
				if shown++; shown <= maxDetails {
					bar.printf("%s\n", text)
				} else if shown == maxDetails+1 {
					bar.printf("… and more\n")
				}
			}
			c.Progress = func(done, total int) { bar.set(int64(done), int64(total)) }
			env := app.Env{Log: newLogger(cmd, cfg)}
			var r verified
			r.Report, err = app.Verify(cmd.Context(), cfg, env, args[0], c)
			if err == nil && journal != "" {
				r.Acks = new(acks.Report)
				*r.Acks, err = app.CheckAcks(cmd.Context(), cfg, env, args[0], journal, c.Detail)
			}
			bar.done(err == nil)
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			} else {
				err = printReport(cmd, r)
			}
			if err == nil && !r.Clean() {
				return exitError{exitDifferences, fmt.Errorf("%s: there are differences", args[0])}
			}
			return err
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	f := cmd.Flags()
	f.DurationVar(&c.Wait, "wait", 30*time.Second, "how long to wait for cells to become final; what is not in Kafka then is missing")
	f.StringVar(&journal, "acks", "", "journal of clients' answers to check too")
	f.IntVar(&c.Parallel, "parallel", verify.DefaultParallel, "partitions compared at a time")
	return cmd
}

// verified is what verify found, and prints.
type verified struct {
	verify.Report
	Acks *acks.Report `json:"acks,omitempty"`
}

// Clean reports whether there is no difference.
func (r verified) Clean() bool { return r.Report.Clean() && (r.Acks == nil || r.Acks.Clean()) }

func printReport(cmd *cobra.Command, r verified) error {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "shards %d, cells %d, records %d\n", r.Shards, r.Cells, r.Records)
	_, err := fmt.Fprintf(out, "missing %d, duplicates %d, out of order %d, holes %d, body mismatch %d\n", r.Missing, r.Duplicates, r.OutOfOrder, r.Holes, r.BodyMismatch)
	if m := r.Merged; m != nil {
		_, err = fmt.Fprintf(out, "merged topic %s: records %d, missing %d, duplicates %d, out of order %d, holes %d, body mismatch %d\n",
			m.Topic, m.Records, m.Missing, m.Duplicates, m.OutOfOrder, m.Holes, m.BodyMismatch)
	}
	for _, i := range r.Indexes {
		_, err = fmt.Fprintf(out, "index %s: entries %d, missing %d, stale %d, extra %d\n", i.Name, i.Entries, i.Missing, i.Stale, i.Extra)
	}
	if a := r.Acks; a != nil {
		_, err = fmt.Fprintf(out, "answers %d to %d keys, acknowledged %d, accepted %d, rejected %d: lost %d, other body %d, two bodies %d, ghosts %d, unnamed %d, waiting %d\n",
			a.Answers, a.Keys, a.Acknowledged, a.Accepted, a.Rejected, a.Lost, a.OtherBody, a.TwoBodies, a.Ghosts, a.Unnamed, a.Waiting)
	}
	if err == nil && r.Clean() {
		_, err = fmt.Fprintln(out, "clean")
	}
	return err
}
