package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
)

func newIndex() *cobra.Command {
	cmd := &cobra.Command{Use: "index", Short: "Query secondary indexes"}
	cmd.AddCommand(newIndexQuery())
	return cmd
}

func newIndexQuery() *cobra.Command {
	var t target
	var read, cursor, fields string
	var limit int
	cmd := &cobra.Command{
		Use:   "query DATASTORE INDEX FIELD[.OP]=VALUE…",
		Short: "Find rows by an index",
		Long: `Find rows by an index. The shard field (the first of the definition) must be given by equality; other fields
may be filtered by =, and by .ne .lt .lte .gt .gte .in. The answer is printed as JSON.`,
		Example: `  cellog index query trips driver_partner_index driver_partner_uuid=0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c77 \
      trip_created_at.gte=2026-03-01T00:00:00Z --limit 20`,
		Args: cobra.MinimumNArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cellog.CheckDatastore(args[0]); err != nil {
				return exitError{exitUsage, err}
			}
			q := url.Values{}
			for _, a := range args[2:] {
				field, value, ok := strings.Cut(a, "=")
				if !ok || field == "" {
					return usageError("%q: want FIELD=VALUE or FIELD.OP=VALUE", a)
				}
				q.Add(field, value)
			}
			for k, v := range map[string]string{"cursor": cursor, "select": fields} {
				if v != "" {
					q.Set(k, v)
				}
			}
			if err := checkLimit("limit", limit); err != nil {
				return err
			}
			if limit > 0 {
				q.Set("limit", strconv.Itoa(limit))
			}
			from, err := cellog.ParseReadFrom(read)
			if err != nil {
				return usageError("--%w", err)
			}
			if from != cellog.Master {
				q.Set("read", from.String())
			}
			c, err := t.client()
			if err != nil {
				return err
			}
			defer c.Close()
			answer, err := c.IndexQuery(cmd.Context(), args[0], args[1], q)
			if err != nil {
				return err
			}
			if !json.Valid(answer) {
				return fmt.Errorf("the worker's answer is not JSON")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSpace(string(answer)))
			return err
		},
	}
	t.httpFlags(cmd)
	readFlag(cmd, &read)
	f := cmd.Flags()
	f.IntVar(&limit, "limit", 0, "at most so many rows")
	f.StringVar(&cursor, "cursor", "", "continue where an answer's next points")
	f.StringVar(&fields, "select", "", "only these fields, a,b (default all)")
	return cmd
}
