package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

// followInterval is how often `log read --follow` asks again at the log's end.
const followInterval = 200 * time.Millisecond

func newLog() *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Read shards' logs"}
	cmd.AddCommand(newLogRead())
	return cmd
}

func newLogRead() *cobra.Command {
	var t target
	var format, since string
	var q client.LogQuery
	var after int64
	var limit int
	var follow bool
	cmd := &cobra.Command{
		Use:   "read DATASTORE SHARD",
		Short: "Read a shard's log in order",
		Long: `Read a shard's log in added_id order, up to what is final in Kafka (all with --provisional). Cells carry their
added_id, epoch and sequence, so that a copy's completeness can be proved by counting.`,
		Example: `  cellog log read trips 7 --after 0 --format json
  cellog log read trips 7 --since 2026-03-01T00:00:00Z --column BASE
  cellog log read trips 7 --follow`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if err := checkLimit("limit", limit); err != nil {
				return err
			}
			if after < 0 {
				return usageError("--after %d: want an added_id, or 0 for the log's beginning", after)
			}
			if err := cellog.CheckDatastore(args[0]); err != nil {
				return exitError{exitUsage, err}
			}
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 0 || n >= cellog.MaxShards {
				return usageError("shard %q: want 0 to %d", args[1], cellog.MaxShards-1)
			}
			q.Shard, q.After, q.Limit = cellog.ShardID(n), cellog.AddedID(after), limit
			if since != "" && cmd.Flags().Changed("after") {
				return usageError("--after and --since are two places to start at: give one")
			}
			if since != "" {
				if q.Since, err = time.Parse(time.RFC3339Nano, since); err != nil {
					return usageError("--since %q: want a time such as 2026-03-01T12:00:00Z", since)
				}
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			return readLog(cmd.Context(), c, args[0], q, follow, func(cells []client.Cell) error {
				return printCells(cmd.OutOrStdout(), format, cells)
			})
		},
	}
	t.httpFlags(cmd)
	formatFlag(cmd, &format)
	f := cmd.Flags()
	f.Int64Var(&after, "after", 0, "start behind this added_id")
	f.StringVar(&since, "since", "", "start at this time instead")
	f.StringVar(&q.Column, "column", "", "only this column")
	f.IntVar(&limit, "limit", 0, "at most so many cells (default all)")
	f.BoolVar(&q.Provisional, "provisional", false, "also what is not final yet")
	f.BoolVar(&follow, "follow", false, "go on waiting for new cells")
	return cmd
}

func readLog(ctx context.Context, c *client.Client, datastore string, q client.LogQuery, follow bool, show func([]client.Cell) error) error {
	left := q.Limit
	for {
		q.Limit = left
		p, err := c.Log(ctx, datastore, q)
		if err != nil {
			return err
		}
		if err := show(p.Cells); err != nil {
			return err
		}
		if n := len(p.Cells); n > 0 {
			q.After, q.Since = p.Cells[n-1].AddedID, time.Time{}
			if left > 0 {
				if left -= n; left <= 0 {
					return nil
				}
			}
		}
		if p.Next != "" && len(p.Cells) > 0 {
			continue
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}
