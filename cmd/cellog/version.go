package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  cellog version --format json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			if err := checkFormat(format); err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "cellog %s (%s, %s)\n", v.Version, v.Revision, v.Go)
			return err
		},
	}
	formatFlag(cmd, &format)
	return cmd
}

type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
}

func buildVersion() version {
	v := version{Version: "devel", Revision: "unknown revision", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

// formatFlag adds --format, for people or for machines.
func formatFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVar(format, "format", "text", "output: text for people, json for machines")
}

// checkLimit checks a flag that bounds a number of answers; zero is no bound.
func checkLimit(flag string, n int) error {
	if n < 0 {
		return usageError("--%s %d: want 0 (no limit) or more", flag, n)
	}
	return nil
}

func checkFormat(format string) error {
	if format != "text" && format != "json" {
		return usageError("--format %q: want text or json", format)
	}
	return nil
}
