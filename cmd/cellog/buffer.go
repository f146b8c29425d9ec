package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

func newBuffer() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buffer",
		Short: "Look at cells that wait for their shard's primary, and at those that were rejected",
		Long: `While a shard's primary gives no answer, puts are kept on two other machines and answered 202. They go in by
themselves when it is back. One that has lost to another body by then, or that is refused, is kept as rejected.`,
	}
	cmd.AddCommand(newBufferList(), newBufferRejects(), newBufferRetry())
	return cmd
}

// bufferCommand makes a command that asks about one datastore.
func bufferCommand(use, short, long, example string, run func(ctx context.Context, c *client.Client, datastore, format string, out io.Writer) error) *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use: use + " DATASTORE", Short: short, Long: long, Example: "  " + example, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if err := cellog.CheckDatastore(args[0]); err != nil {
				return exitError{exitUsage, err}
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			return run(cmd.Context(), c, args[0], format, cmd.OutOrStdout())
		},
	}
	t.httpFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func newBufferList() *cobra.Command {
	return bufferCommand("list", "Show how many cells wait, by shard and server",
		"Show how many cells wait for their shard's primary. Each is on two servers, so it is counted twice.",
		"cellog buffer list trips",
		func(ctx context.Context, c *client.Client, datastore, format string, out io.Writer) error {
			all, err := c.Buffered(ctx, datastore)
			if err != nil {
				return err
			}
			if format == "json" {
				return printLines(out, all)
			}
			if len(all) == 0 {
				_, err := fmt.Fprintln(out, "no cell waits")
				return err
			}
			w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "SHARD\tHELD BY\tCELLS\tOLDEST") // errors come with Flush
			for _, b := range all {
				fmt.Fprintf(w, "%s\t%s\t%d\t%s ago\n", cellog.DatabaseName(datastore, b.Shard), b.HeldBy, b.Cells, time.Since(b.Oldest).Round(time.Second))
			}
			return w.Flush()
		})
}

func newBufferRejects() *cobra.Command {
	return bufferCommand("rejects", "List the rejected cells, with both bodies as --format json",
		"List cells that were answered 202 and then lost to another body, or were refused. The servers that held a cell's\ncopies keep a record each.",
		"cellog buffer rejects trips --format json",
		func(ctx context.Context, c *client.Client, datastore, format string, out io.Writer) error {
			w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
			found := false
			err := eachRejected(ctx, c, datastore, func(page []client.Rejected) error {
				if format == "json" {
					return printLines(out, page)
				}
				for _, r := range page {
					if !found {
						fmt.Fprintln(w, "CELL\tREASON\tWINNER\tREJECTED AT\tHELD BY") // errors come with Flush
					}
					found = true
					winner := "-"
					if r.Winner != nil {
						winner = cellog.CellID(datastore, r.Shard, r.Winner.AddedID)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cellog.Key{Row: r.RowKey, Column: r.Column, Ref: r.RefKey}, r.Reason, winner, r.RejectedAt.Format(time.RFC3339), r.HeldBy)
				}
				return nil
			})
			if err != nil || format == "json" {
				return err
			}
			if !found {
				_, err := fmt.Fprintln(out, "no cell was rejected")
				return err
			}
			return w.Flush()
		})
}

func newBufferRetry() *cobra.Command {
	return bufferCommand("retry", "Put those rejected cells again that were refused, not those that lost",
		`Put the rejected cells again that were refused for a reason that may be gone, such as the limit of columns. Those that lost
to another body stay lost: that body stands. The records of rejections stay.`,
		"cellog buffer retry trips",
		func(ctx context.Context, c *client.Client, datastore, format string, out io.Writer) error {
			done := map[cellog.Key]bool{}
			failed := 0
			err := eachRejected(ctx, c, datastore, func(page []client.Rejected) error {
				for _, r := range page {
					key := cellog.Key{Row: r.RowKey, Column: r.Column, Ref: r.RefKey}
					if r.Reason == "conflict" || done[key] {
						continue
					}
					done[key] = true
					res, err := c.Put(ctx, datastore, cellog.Put{Key: key, Body: r.Body})
					outcome := res.Outcome.String()
					switch {
					case client.IsConflict(err):
					case err != nil:
						failed++
						outcome = err.Error()
					case res.Buffered:
						outcome = cellog.Buffered.String()
					}
					line := struct {
						Key     string `json:"key"`
						Outcome string `json:"outcome"`
					}{key.String(), outcome}
					if format == "json" {
						err = json.NewEncoder(out).Encode(line)
					} else {
						_, err = fmt.Fprintf(out, "%s\t%s\n", line.Key, line.Outcome)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err == nil && failed > 0 {
				err = fmt.Errorf("%d of %d cells were refused again", failed, len(done))
			}
			return err
		})
}

// eachRejected calls fn for each page of a datastore's rejected cells.
func eachRejected(ctx context.Context, c *client.Client, datastore string, fn func([]client.Rejected) error) error {
	for after, more := "", true; more; {
		var page []client.Rejected
		var err error
		if page, after, more, err = c.Rejected(ctx, datastore, after, 0); err != nil {
			return err
		}
		if err := fn(page); err != nil {
			return err
		}
	}
	return nil
}

// printLines prints one JSON object a line.
func printLines[T any](out io.Writer, all []T) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	for _, v := range all {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
