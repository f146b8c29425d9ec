package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/importer"
)

func newImport() *cobra.Command {
	var t target
	var format, fileFormat, namespace string
	var m importer.Mapping
	var typeFlags []string
	var parallel, batch, maxBad int
	cmd := &cobra.Command{
		Use:   "import DATASTORE FILE",
		Short: "Import rows of a CSV or JSONL file as cells",
		Long: `Import each row of a CSV or JSONL file as a cell. FILE may be - for standard input; one whose name ends in .gz is
unpacked.

An import can be repeated and resumed by running it again: the same row makes the same cell, and a cell that is
already there is counted as "same". A row that cannot be read, is refused, or conflicts with another body under the
same key is reported with its line number, and the others go on.

A CSV file's first row names the fields; the body is an object of them in that order, strings unless --type says
otherwise. A JSONL line is the body as it is. Text is UTF-8. Of two rows of a file with the same key and different
bodies either may be the one that is stored; the other one conflicts.

--row-key-uuid5 makes the row key a UUID version 5 of the named fields' texts, joined by the character U+001F; * means
all fields. The field _line is every row's line number.

Exit codes: 0 all rows are stored; 1 rows were bad, or it failed or was interrupted; 2 nothing was tried, for the flags,
or the file or its header, are wrong; 3 all others are stored, but rows conflict.`,
		Example: `  cellog import trips trips.csv --column BASE --row-key-uuid5 pickup,dropoff,total,_line \
      --type passengers:int64 --type fare:decimal --type total:decimal
  cellog import trips status.jsonl --column STATUS --row-key trip --ref-key attempt`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if err := cellog.CheckDatastore(args[0]); err != nil {
				return exitError{exitUsage, err}
			}
			switch {
			case parallel < 1 || parallel > 256:
				return usageError("--parallel %d: want 1 to 256", parallel)
			case batch < 1 || batch > 10000:
				return usageError("--batch %d: want 1 to 10000", batch)
			case maxBad < 0:
				return usageError("--max-bad %d: want 0 (no limit) or more", maxBad)
			}
			m.Types = map[string]string{}
			for _, f := range typeFlags {
				i := strings.LastIndexByte(f, ':')
				if i < 0 {
					return usageError("--type %q: want FIELD:TYPE", f)
				}
				m.Types[f[:i]] = f[i+1:]
			}
			if namespace != "" {
				id, err := uuid.Parse(namespace)
				if err != nil {
					return usageError("--namespace %q: want a UUID", namespace)
				}
				m.Namespace = id
			}
			in, size, err := openInput(cmd.Context(), cmd.InOrStdin(), args[1])
			if err != nil {
				return err
			}
			defer in.Close()
			bar := newProgress(cmd.ErrOrStderr(), "importing", size)
			defer bar.abort()
			src, err := newSource(bar.reader(in), args[1], fileFormat, m)
			if err != nil && cmd.Context().Err() != nil {
				return errors.New("interrupted, nothing was put")
			}
			if err != nil {
				return exitError{exitUsage, fmt.Errorf("%s: %w", args[1], err)}
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			stats, err := importer.Run(cmd.Context(), src, importer.Config{
				Datastore: args[0], Put: putBatch(c), BatchCells: batch, Parallel: parallel, MaxBad: maxBad,
				Report:   func(line int, err error) { bar.printf("%s:%d: %v\n", args[1], line, err) },
				Progress: func(s importer.Stats) { bar.note(fmt.Sprintf("%d rows", s.Done())) },
			})
			bar.done(err == nil)
			if perr := printStats(cmd.OutOrStdout(), format, stats); perr != nil {
				return perr
			}
			switch {
			case err != nil && cmd.Context().Err() != nil:
				return fmt.Errorf("interrupted; run it again to go on: %w", err)
			case err != nil:
				return err
			case stats.Bad > 0 && stats.Conflict > 0:
				return fmt.Errorf("%d rows were bad, and were not imported; %w", stats.Bad, conflicts(args[0], stats))
			case stats.Bad > 0:
				return fmt.Errorf("%d rows were bad, and were not imported", stats.Bad)
			case stats.Conflict > 0:
				return exitError{exitDifferences, conflicts(args[0], stats)}
			}
			return nil
		},
	}
	t.httpFlags(cmd)
	formatFlag(cmd, &format)
	f := cmd.Flags()
	f.StringVar(&fileFormat, "input", "", "csv or jsonl (default by the file's name)")
	f.StringVar(&m.Column, "column", "", "the cells' column (required)")
	f.StringVar(&m.RowKey, "row-key", "", "field that holds the row key, a UUID")
	f.StringSliceVar(&m.UUID5, "row-key-uuid5", nil, "fields to make the row key of")
	f.StringVar(&namespace, "namespace", "", "namespace of --row-key-uuid5 (default the URL namespace)")
	f.StringVar(&m.RefKey, "ref-key", "0", "field that holds the ref key, or an integer for all")
	f.StringArrayVar(&typeFlags, "type", nil, "FIELD:TYPE of a CSV field: string, int64, decimal, bool, json or skip; repeatable")
	f.IntVar(&parallel, "parallel", importer.DefaultParallel, "batches in flight")
	f.IntVar(&batch, "batch", importer.DefaultBatchCells, "rows in a batch")
	f.IntVar(&maxBad, "max-bad", 0, "stop when more rows are bad (default never)")
	must(cmd.MarkFlagRequired("column"))
	return cmd
}

// conflicts says what conflicts mean, and the way out.
func conflicts(datastore string, s importer.Stats) error {
	return fmt.Errorf("%d rows conflict: another body is stored under their keys, and stays (see it: cellog cell get %s ROW_KEY COLUMN REF_KEY); a correction is a cell under a higher ref key (--ref-key)",
		s.Conflict, datastore)
}

// must panics for mistakes of this program itself.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// openInput opens the file and tells its size, or zero where that is unknown.
func openInput(ctx context.Context, stdin io.Reader, name string) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(interruptible(ctx, stdin)), 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, exitError{exitUsage, err}
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: want a file", name)
	}
	if err != nil {
		return nil, 0, exitError{exitUsage, errors.Join(err, f.Close())}
	}
	return f, info.Size(), nil
}

func newSource(r io.Reader, name, format string, m importer.Mapping) (importer.Source, error) {
	lower, packed := strings.CutSuffix(strings.ToLower(name), ".gz")
	if format == "" {
		switch {
		case strings.HasSuffix(lower, ".csv"):
			format = "csv"
		case strings.HasSuffix(lower, ".jsonl"), strings.HasSuffix(lower, ".ndjson"):
			format = "jsonl"
		}
	}
	newFormat := importer.NewCSV
	switch format {
	case "csv":
	case "jsonl":
		newFormat = importer.NewJSONL
	case "":
		return nil, errors.New("cannot tell the file's format by its name: give --input csv or --input jsonl")
	default:
		return nil, fmt.Errorf("--input %q: want csv or jsonl", format)
	}
	if packed {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("it is no gzip file: %w", err)
		}
		r = z
	}
	return newFormat(r, m)
}

func putBatch(c *client.Client) func(context.Context, string, []cellog.Put) ([]importer.Result, error) {
	return func(ctx context.Context, datastore string, puts []cellog.Put) ([]importer.Result, error) {
		results, err := c.PutBatch(ctx, datastore, puts)
		if err != nil {
			return nil, err
		}
		out := make([]importer.Result, len(results))
		for i, r := range results {
			out[i] = importer.Result{Outcome: r.Outcome, Buffered: r.Buffered, Err: r.Err}
		}
		return out, nil
	}
}

func printStats(w io.Writer, format string, s importer.Stats) error {
	if format == "json" {
		return json.NewEncoder(w).Encode(s)
	}
	_, err := fmt.Fprintf(w, "created %d, same %d, conflict %d, bad %d", s.Created, s.Same, s.Conflict, s.Bad)
	if err == nil && s.Buffered > 0 {
		_, err = fmt.Fprintf(w, ", buffered %d", s.Buffered)
	}
	if err == nil {
		_, err = fmt.Fprintln(w)
	}
	return err
}
