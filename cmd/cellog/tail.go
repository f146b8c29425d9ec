package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/app"
)

func newTail() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Look at the streams from the storage clusters to Kafka, pause and resume them",
		Long: `Look at the streams from the storage clusters to Kafka, pause and resume them. What is shown comes from Kafka and the
servers; no tailer's own port is needed. docs/tail-operating.md says what each state means, and what to do.`,
	}
	cmd.AddCommand(newTailStatus(), newTailPause(), newTailResume(), newTailExplain())
	return cmd
}

func newTailStatus() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "status [CLUSTER…]",
		Short: "Show whether cells get into Kafka, and how far behind each cluster is",
		Long: `Show for each cluster whether its cells get into Kafka: it waits until a heartbeat that is written now has come all the
way, at most six seconds. LAG is how long that took, or how old the last one is that came; CELLS is how many cells the
opened node has that are not in Kafka. A shard that is behind although a later heartbeat came through stands still.

States: flowing; catching up (no heartbeat came yet, cells did); shards stop (some shards stand still, the others flow);
stuck (a tailer lives and nothing comes through); no tailer; paused; not open; unknown (Kafka does not answer).

Exit codes: 0 all flow or catch up, 3 something stands still or is paused, 1 it could not be told.`,
		Example: `  cellog tail status
  cellog tail status c1 c2 --format json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			all, err := app.TailStatuses(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, args)
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			} else {
				err = printTails(cmd.OutOrStdout(), all)
			}
			return errors.Join(err, tailExit(all))
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

// tailExit is the exit code that the states deserve.
func tailExit(all []app.TailStatus) error {
	var unknown, still []string
	for _, s := range all {
		switch {
		case s.State == app.TailUnknown:
			unknown = append(unknown, s.Cluster)
		case !s.Flows():
			still = append(still, s.Cluster)
		}
	}
	switch {
	case len(unknown) > 0:
		return fmt.Errorf("not known of %s: Kafka does not answer", strings.Join(unknown, ", "))
	case len(still) > 0:
		return exitError{exitDifferences, fmt.Errorf("not all that should flows: cellog tail explain %s", still[0])}
	}
	return nil
}

func printTails(out io.Writer, all []app.TailStatus) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	seconds := func(s *float64) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f s", *s)
	}
	fmt.Fprintln(w, "CLUSTER\tSTATE\tTERM\tOPENED\tTAILS\tTAILER\tHEARTBEAT\tLAG\tCELLS\tWORST SHARD") // errors come with Flush
	for _, s := range all {
		node, worst := "", "-"
		if s.Tailer != nil {
			node = s.Tailer.Node
		}
		if s.Worst != nil {
			worst = fmt.Sprintf("%s: %d of %d", s.Worst.Shard, s.Worst.Final, s.Worst.Stored)
		}
		heartbeat := seconds(s.Heartbeat)
		if s.Heartbeat != nil {
			heartbeat += " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", s.Cluster, s.State, s.Term, orDash(s.Opened), orDash(node), orDash(s.Mark), heartbeat, seconds(s.Lag), s.Cells, worst)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range all {
		if s.Pause != nil && s.Pause.Paused {
			fmt.Fprintf(out, "%s is %s\n", s.Cluster, app.PauseWords(*s.Pause))
		}
		for i, l := range s.Still {
			if i == 20 {
				fmt.Fprintf(out, "… and %d shards of %s more (--format json has all)\n", len(s.Still)-i, s.Cluster)
				break
			}
			fmt.Fprintf(out, "%s stands still at %d of %d: %s\n", l.Shard, l.Final, l.Stored, cmp.Or(l.Reason, "cellog tail explain says more"))
		}
		for _, p := range s.Problems {
			fmt.Fprintf(out, "%s: %s\n", s.Cluster, p)
		}
	}
	return nil
}

func newTailPause() *cobra.Command {
	var reason string
	return pauseCommand(true, &reason, "pause CLUSTER", "Let a cluster's tailer publish nothing until it is resumed",
		`Let a cluster's tailer publish nothing until it is resumed. It commits what it has in hand, stays the cluster's tailer, and
says in its readiness, metrics and status who paused it, when and why. The word is a row on the cluster's master
(cellog_meta.pauses): it survives restarts and promotions, and takes effect within seconds. Puts go on; with ack copy
their copies pile up, with ack final they time out. Promotions of other clusters, and moves of shards, wait for it.

Exit codes: 0 the word is written, 1 it is not.`,
		`  cellog tail pause c1 --reason "the brokers are moved"`)
}

func newTailResume() *cobra.Command {
	return pauseCommand(false, new(string), "resume CLUSTER", "Let a paused tailer go on where it was",
		`Let a paused tailer go on where it was: it leaves nothing out and publishes nothing twice. Resuming one that is not paused
changes nothing.

Exit codes: 0 the word is written, 1 it is not.`,
		"  cellog tail resume c1")
}

func pauseCommand(pause bool, reason *string, use, short, long, example string) *cobra.Command {
	var t target
	var by string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(app.CheckPauseText("by", by, app.MaxPauseBy), app.CheckPauseText("reason", *reason, app.MaxPauseReason)); err != nil {
				return exitError{exitUsage, err}
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			stands, node, err := app.SetPause(cmd.Context(), cfg, args[0], cdc.Pause{Paused: pause, By: by, Reason: *reason})
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s (written on node %s)\n", args[0], app.PauseWords(stands), node)
			}
			return err
		},
	}
	t.fileFlags(cmd)
	cmd.Flags().StringVar(&by, "by", operator(), "who says so")
	if pause {
		cmd.Flags().StringVar(reason, "reason", "", "why, for whoever meets it")
	}
	return cmd
}

// operator is the name of who calls.
func operator() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return cmp.Or(os.Getenv("USER"), "somebody")
}

func newTailExplain() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "explain CLUSTER[/DATASTORE/SHARD]",
		Short: "Say why the cells of a cluster or shard get into Kafka or do not, and what helps",
		Long: `Say in words why the cells of a cluster, or of one shard, get into Kafka or do not: what status shows, what the tailer
says of the shards that it stopped, what a tailer that starts now would find on each node, the state of the topics, and
the commands that help. It changes nothing.

Exit codes: 0 all flow or catch up, 3 something stands still or is paused, 1 it could not be told.`,
		Example: `  cellog tail explain c1
  cellog tail explain c1/trips/7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			parts := strings.Split(args[0], "/")
			var datastore string
			var shard cellog.ShardID
			switch len(parts) {
			case 1:
			case 3:
				datastore = parts[1]
				var err error
				if shard, err = app.ParseShard(datastore, parts[2]); err != nil {
					return exitError{exitUsage, err}
				}
			default:
				return usageError("%q: want CLUSTER or CLUSTER/DATASTORE/SHARD", args[0])
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			e, err := app.ExplainTail(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, parts[0], datastore, shard)
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(e)
			} else {
				for _, w := range e.Words {
					fmt.Fprintln(cmd.OutOrStdout(), w)
				}
				for _, h := range e.Help {
					fmt.Fprintln(cmd.OutOrStdout(), "  try:", h)
				}
			}
			return errors.Join(err, tailExit([]app.TailStatus{e.TailStatus}))
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}
