package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

func newCell() *cobra.Command {
	cmd := &cobra.Command{Use: "cell", Short: "Put and read cells"}
	cmd.AddCommand(newCellPut(), newCellGet(), newCellHistory())
	return cmd
}

func newCellPut() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "put DATASTORE ROW_KEY COLUMN REF_KEY [JSON|@FILE|-]",
		Short: "Put a cell; the body comes from the argument, a file, or standard input",
		Long: `Put one immutable cell. Putting the same cell again is a success that changes nothing; another body under
the same key is a conflict (exit code 1), and the first one stays. Write -- in front of a negative ref key.`,
		Example: `  cellog cell put trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 BASE 1 '{"fare": 12.5}'
  cellog cell put trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 BASE -- -1 '{"fare": 12.5}'
  echo '{"fare": 12.5}' | cellog cell put trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 BASE 1`,
		Args: cobra.RangeArgs(4, 5),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			key, err := keyArgs(args[:4])
			if err != nil {
				return err
			}
			body, err := bodyArg(cmd.Context(), cmd.InOrStdin(), args[4:])
			if err != nil {
				return err
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			res, err := c.Put(cmd.Context(), args[0], cellog.Put{Key: key, Body: body})
			if err != nil && !client.IsConflict(err) {
				return err
			}
			if werr := printPut(cmd.OutOrStdout(), format, args[0], res); werr != nil {
				return werr
			}
			return err
		},
	}
	t.httpFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func printPut(w io.Writer, format, datastore string, res client.PutResult) error {
	outcome := res.Outcome.String()
	if res.Buffered {
		outcome = "buffered"
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(map[string]any{"outcome": outcome, "shard": res.Shard, "added_id": res.AddedID,
			"epoch": res.Epoch, "created_at": res.CreatedAt, "token": res.Token})
	}
	if res.Buffered {
		_, err := fmt.Fprintln(w, "buffered: durable, not readable yet")
		return err
	}
	_, err := fmt.Fprintf(w, "%s %s\n", outcome, cellog.CellID(datastore, res.Shard, res.AddedID))
	return err
}

func newCellGet() *cobra.Command {
	var t target
	var format, read string
	var all bool
	cmd := &cobra.Command{
		Use:   "get DATASTORE ROW_KEY [COLUMN [REF_KEY]]",
		Short: "Read a cell, the newest of a column, or a whole row",
		Example: `  cellog cell get trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 BASE      # the newest version
  cellog cell get trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 BASE 1    # this version
  cellog cell get trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77           # the newest of every column`,
		Args: cobra.RangeArgs(2, 4),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := readOptions(format, read)
			if err != nil {
				return err
			}
			key, err := keyArgs(args)
			if err != nil {
				return err
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			if all && len(args) > 2 {
				return usageError("--all is for a whole row: `cellog cell history` reads all versions of a column")
			}
			if len(args) == 2 {
				p, err := c.Row(cmd.Context(), args[0], key.Row, all, o)
				if err != nil {
					return err
				}
				return printCells(cmd.OutOrStdout(), format, p.Cells)
			}
			var cell client.Cell
			if len(args) == 4 {
				cell, err = c.Get(cmd.Context(), args[0], key, o)
			} else {
				cell, err = c.Newest(cmd.Context(), args[0], key, o)
			}
			if err != nil {
				return err
			}
			if cell.Stale {
				fmt.Fprintln(cmd.ErrOrStderr(), "cellog: stale: a newer answer may exist on a node that did not answer")
			}
			if format == "text" {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), string(cell.Body))
				return err
			}
			return printCells(cmd.OutOrStdout(), format, []client.Cell{cell})
		},
	}
	t.httpFlags(cmd)
	formatFlag(cmd, &format)
	readFlag(cmd, &read)
	cmd.Flags().BoolVar(&all, "all", false, "all versions of a row, not only the newest of each column")
	return cmd
}

func newCellHistory() *cobra.Command {
	var t target
	var format, read string
	var limit int
	cmd := &cobra.Command{
		Use:     "history DATASTORE ROW_KEY COLUMN",
		Short:   "Read all versions of a column, lowest ref key first",
		Example: `  cellog cell history trips 0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 STATUS --format json`,
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := readOptions(format, read)
			if err == nil {
				err = checkLimit("limit", limit)
			}
			if err != nil {
				return err
			}
			key, err := keyArgs(args)
			if err != nil {
				return err
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			cursor := ""
			for left := limit; ; {
				p, err := c.History(cmd.Context(), args[0], key, left, cursor, o)
				if err != nil {
					return err
				}
				if err := printCells(cmd.OutOrStdout(), format, p.Cells); err != nil {
					return err
				}
				cursor = p.Next
				if left > 0 {
					if left -= len(p.Cells); left <= 0 {
						return nil
					}
				}
				if cursor == "" {
					return nil
				}
			}
		},
	}
	t.httpFlags(cmd)
	formatFlag(cmd, &format)
	readFlag(cmd, &read)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many versions (default all)")
	return cmd
}

func readFlag(cmd *cobra.Command, read *string) {
	cmd.Flags().StringVar(read, "read", "master", "which node to ask: master or minion")
}

func readOptions(format, read string) (client.ReadOptions, error) {
	if err := checkFormat(format); err != nil {
		return client.ReadOptions{}, err
	}
	from, err := cellog.ParseReadFrom(read)
	if err != nil {
		return client.ReadOptions{}, usageError("--%w", err)
	}
	return client.ReadOptions{From: from}, nil
}

// keyArgs reads DATASTORE ROW_KEY [COLUMN [REF_KEY]].
func keyArgs(args []string) (cellog.Key, error) {
	var k cellog.Key
	err := cellog.CheckDatastore(args[0])
	if err == nil {
		k.Row, err = cellog.ParseRowKey(args[1])
	}
	if err == nil && len(args) > 2 {
		k.Column, err = args[2], cellog.CheckColumn(args[2])
	}
	if err == nil && len(args) > 3 {
		k.Ref, err = cellog.ParseRefKey(args[3])
	}
	if err != nil {
		return k, exitError{exitUsage, err}
	}
	return k, nil
}

// bodyArg reads a body from the argument, @FILE, or standard input.
func bodyArg(ctx context.Context, stdin io.Reader, args []string) ([]byte, error) {
	if len(args) == 0 || args[0] == "-" {
		return io.ReadAll(interruptible(ctx, stdin))
	}
	if file, ok := strings.CutPrefix(args[0], "@"); ok {
		body, err := os.ReadFile(file)
		if err != nil {
			return nil, exitError{exitUsage, err}
		}
		return body, nil
	}
	return []byte(args[0]), nil
}

// interruptible ends the reading of standard input with ctx. Nothing else can:
// the goroutine that reads it stays behind until the process ends.
func interruptible(ctx context.Context, stdin io.Reader) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(w, stdin)
		w.CloseWithError(err)
	}()
	return r
}

// cellLine is a cell as --format json prints it, one a line.
type cellLine struct {
	RowKey    string          `json:"row_key"`
	Column    string          `json:"column"`
	RefKey    cellog.RefKey   `json:"ref_key"`
	Shard     cellog.ShardID  `json:"shard"`
	AddedID   cellog.AddedID  `json:"added_id"`
	Epoch     cellog.Epoch    `json:"epoch,omitempty"`
	Sequence  cellog.Sequence `json:"sequence,omitempty"`
	CreatedAt time.Time       `json:"created_at"`
	ReadFrom  string          `json:"read_from,omitempty"`
	Stale     bool            `json:"stale,omitempty"`
	Body      json.RawMessage `json:"body"`
}

func printCells(w io.Writer, format string, cells []client.Cell) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, c := range cells {
		var err error
		if format == "json" {
			err = e.Encode(cellLine{c.Row.String(), c.Column, c.Ref, c.Shard, c.AddedID, c.Epoch, c.Sequence, c.CreatedAt, c.ReadFrom, c.Stale, c.Body})
		} else {
			_, err = fmt.Fprintf(w, "%d/%d\t%s\t%s\t%s\n", c.Shard, c.AddedID, c.CreatedAt.Format(time.RFC3339Nano), c.Key, c.Body)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
