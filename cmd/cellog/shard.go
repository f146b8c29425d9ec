package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/schemas/position"
)

func newShard() *cobra.Command {
	cmd := &cobra.Command{Use: "shard", Short: "Look at shards, and move them to other clusters"}
	cmd.AddCommand(newShardList(), newShardDescribe(), newShardMove())
	return cmd
}

func newShardMove() *cobra.Command {
	var t target
	var format string
	var req app.Move
	cmd := &cobra.Command{
		Use:   "move DATASTORE SHARD --to CLUSTER",
		Short: "Move a shard to another storage cluster while it serves",
		Long: `Move a shard: its cells that are final are copied while it serves; then it is closed, for as long as the last few cells
and its index tables take, handed over in Kafka, and opened on the other cluster in the next epoch. Puts are answered 202,
or 503 and 504 where no copies can be kept, while it is closed. Nothing is deleted on the old cluster, so moving it back
copies only what came since.

It needs Kafka, the tailers of both clusters, their masters, and a minion of the new cluster that follows, if it has any. A
move that was cut off, by kill -9 too, is finished by the same command; --undo opens the shard again where it was, as long
as it was not handed over. docs/moving.md tells each step, and what to do when it refuses.

Exit codes: 0 moved (or it could be, with --dry-run), 1 not, 2 wrong usage.`,
		Example: `  cellog shard move trips 7 --to c2
  cellog shard move trips 7 --to c2 --dry-run
  cellog shard move trips 7 --undo`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := checkFormat(format); err != nil {
				return err
			}
			switch {
			case req.Undo && req.To != "":
				return usageError("--undo opens the shard where it is: leave --to away")
			case req.Undo && req.DryRun:
				return usageError("--dry-run looks whether a move could begin: leave --undo away")
			case !req.Undo && req.To == "":
				return usageError("--to is missing: want the cluster that is to have the shard")
			}
			req.Datastore = args[0]
			if req.Shard, err = app.ParseShard(args[0], args[1]); err != nil {
				return exitError{exitUsage, err}
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			bar := newProgress(cmd.ErrOrStderr(), fmt.Sprintf("moving %s/%d", req.Datastore, req.Shard), 0)
			defer bar.abort()
			last := ""
			req.Progress = func(step string, done, of int64) {
				bar.set(done, of)
				bar.note(step)
				if step != last {
					bar.printf("%s\n", step)
				}
				last = step
			}
			out, err := app.MoveShard(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, req)
			bar.done(err == nil)
			if err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
			}
			switch {
			case req.Undo:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "shard %d of %s is open on %s in epoch %d\n", out.Shard, out.Datastore, out.From, out.Epoch)
			case out.DryRun:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "shard %d of %s could move from %s to %s\n", out.Shard, out.Datastore, out.From, out.To)
			default:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "shard %d of %s is on %s in epoch %d, with %d cells (%d copied now, and %d index rows), after %.1f s, closed for %.1f s\n",
					out.Shard, out.Datastore, out.To, out.Epoch, out.Cells, out.Copied, out.IndexRows, out.Seconds, out.ClosedSeconds)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.To, "to", "", "the cluster that is to have the shard (required, but for --undo)")
	f.BoolVar(&req.DryRun, "dry-run", false, "only look whether the move could begin")
	f.BoolVar(&req.Undo, "undo", false, "open a shard again that a move has closed and not handed over yet")
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func newShardList() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "list [DATASTORE]",
		Short: "Show where shards are, and how far they are final",
		Long: `Show of each shard which cluster owns it, by Kafka, the state of its log on that cluster's opened node, the last cell
stored there, the last one that is final, and how many are not final yet.

Exit codes: 0 all shards are open, 3 one is not, or it is not known.`,
		Example: `  cellog shard list trips
  cellog shard list --format json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			all, err := app.ShardStates(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, append(args, "")[0])
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			} else {
				err = printShards(cmd.OutOrStdout(), all)
			}
			for _, s := range all {
				if err == nil && (s.Problem != "" || s.State != "open") {
					return exitError{exitDifferences, errors.New("not all shards are open")}
				}
			}
			return err
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func printShards(out io.Writer, all []app.ShardState) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "DATASTORE\tSHARD\tCLUSTER\tNODE\tEPOCH\tSTATE\tSTORED\tFINAL\tBEHIND") // errors come with Flush
	for _, s := range all {
		state := s.State
		if s.Problem != "" {
			state = s.Problem
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\t%d\t%d\t%d\n", s.Datastore, s.Shard, orDash(s.Cluster), orDash(s.Node), s.Epoch, state, s.Stored, s.Final, s.Behind)
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newShardDescribe() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "describe DATASTORE SHARD",
		Short: "Show all of a shard: what each server has, its position in Kafka, its index tables",
		Long: `Show what ` + "`cellog shard list`" + ` shows of a shard, and what each server has of it: the owner's nodes, and copies that moves
have made or left. The position is the record in Kafka that counts: up to which cell the shard is final, and where the
last record of each column is.

Exit codes: 0 the shard is open, 3 it is not, or it is not known.`,
		Example: `  cellog shard describe trips 7
  cellog shard describe trips 7 --format json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			shard, err := app.ParseShard(args[0], args[1])
			if err != nil {
				return exitError{exitUsage, err}
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			s, err := app.DescribeShard(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, args[0], shard)
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			} else {
				err = printShard(cmd.OutOrStdout(), s)
			}
			if err == nil && (s.Problem != "" || s.State != "open") {
				return exitError{exitDifferences, errors.New("the shard is not open")}
			}
			return err
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func printShard(out io.Writer, s app.ShardState) error {
	if err := printShards(out, []app.ShardState{s}); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nindex tables: %s\n\n", orDash(strings.Join(s.Indexes, ", ")))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ON\tSTATE\tEPOCH\tTERM\tLAST")
	for _, c := range s.Copies {
		state := c.State
		if c.Problem != "" {
			state = c.Problem
		}
		fmt.Fprintf(w, "%s/%s\t%s\t%d\t%d\t%d\n", c.Cluster, c.Node, state, c.Epoch, c.Term, c.Last)
	}
	if err := w.Flush(); err != nil || s.Position == nil {
		return err
	}
	p := s.Position
	fmt.Fprintf(out, "\nposition in %s: owner %s, epoch %d from added_id %d on, final up to %d\n", p.Topic, p.Record.Owner, p.Record.Epoch, p.Record.First, p.Record.Last)
	return printColumns(out, p.Record)
}

func printColumns(out io.Writer, r position.Shard) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "COLUMN\tSEQUENCE\tADDED_ID\tOFFSET")
	for _, name := range slices.Sorted(maps.Keys(r.Columns)) {
		c := r.Columns[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", name, c.Sequence, c.AddedID, c.Offset)
	}
	return w.Flush()
}
