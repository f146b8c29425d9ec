package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/doctor"
)

func newDoctor() *cobra.Command {
	var t target
	var format string
	var all bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Inspect servers and brokers, and say how to mend what is wrong",
		Long: `Inspect every MySQL server and the Kafka brokers: versions, binlog and durability settings, GTIDs; who follows whom,
read-only minions, servers and shards that are in two clusters, the node that was opened; what each master was told of
the clusters' terms; the passwords of the accounts, and their rights, each with the GRANT that mends it; the settings
of topics. "bad" breaks a promise, "warn" costs speed or comfort.

Exit codes: 0 nothing bad, 3 something is bad.`,
		Example: `  cellog doctor
  cellog doctor --format json --config cellog.yml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			found := app.Inspect(cmd.Context(), cfg, app.Env{})
			doctor.Sort(found)
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(found)
			} else {
				err = printFindings(cmd.OutOrStdout(), found, all)
			}
			if err == nil && doctor.Worst(found) == doctor.Bad {
				return exitError{exitDifferences, errors.New("something is bad")}
			}
			return err
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	cmd.Flags().BoolVar(&all, "all", false, "print what is well too")
	return cmd
}

func printFindings(w io.Writer, found []doctor.Finding, all bool) error {
	well := 0
	for _, f := range found {
		if f.Level == doctor.OK {
			well++
			if !all {
				continue
			}
		}
		fmt.Fprintf(w, "%-4s  %s: %s is %s", f.Level, f.Where, f.Check, f.Found)
		if f.Level != doctor.OK && f.Want != "" {
			fmt.Fprintf(w, ", want %s", f.Want)
		}
		fmt.Fprintln(w)
		if f.Why != "" {
			fmt.Fprintf(w, "      why: %s\n", f.Why)
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "      fix: %s\n", f.Fix)
		}
	}
	_, err := fmt.Fprintf(w, "%d of %d checks are well\n", well, len(found))
	return err
}
