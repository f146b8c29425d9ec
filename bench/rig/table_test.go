package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// readRaw returns a rig that has the results of files of raw results, such as
// those of a run that was done in parts.
func readRaw(files []string) (*rig, error) {
	r := &rig{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		for d := json.NewDecoder(f); ; {
			var text json.RawMessage
			var kind struct{ Kind string }
			var x result
			err := d.Decode(&text)
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = json.Unmarshal(text, &kind)
			}
			if err == nil && slices.Contains(kinds, kind.Kind) {
				err = json.Unmarshal(text, &x)
				r.results = append(r.results, x)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	if len(r.results) == 0 {
		return nil, fmt.Errorf("no results in %s", strings.Join(files, ", "))
	}
	return r, nil
}

// kinds are those of results.
var kinds = []string{"backlog", "capacity", "latency"}

// tables are the medians of all results, as Markdown.
func (r *rig) tables() string {
	var b strings.Builder
	rate := func(x result) float64 { return x.LateRate }
	var names []string
	var sizes [][2]int64 // of backlogs: cells, cells in a transaction
	most := map[string]int{}
	for _, x := range r.results {
		if !slices.Contains(names, x.Subject) {
			names = append(names, x.Subject)
		}
		if size := [2]int64{x.Cells, int64(x.PerTx)}; x.Kind == "backlog" && !slices.Contains(sizes, size) {
			sizes = append(sizes, size)
		}
		most[x.Kind] = max(most[x.Kind], len(r.of(x.Kind, x.Subject, x.PerTx, x.Step)))
	}
	if most["backlog"] > 0 {
		for _, size := range sizes {
			perTx := int(size[1])
			fmt.Fprintf(&b, "\nA backlog of %d cells in transactions of %d; medians of %d; CPU in µs a cell, ratios of the second half's rates.\n\n", size[0], perTx, most["backlog"])
			b.WriteString("| | cells/s, whole / second half | CPU, whole / second half | broker's CPU | server's CPU | peak MiB | s to the first cell | bytes a cell in Kafka | × debezium-tuned | × inflate | × read |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
			for _, name := range names {
				rs := r.of("backlog", name, perTx, "")
				if len(rs) == 0 {
					continue
				}
				m := func(f func(result) float64) float64 { return medianOf(rs, f) }
				fmt.Fprintf(&b, "| %s | %.0f / %.0f | %.1f / %.1f | %.1f | %.1f | %.0f | %.1f | %.0f |", name,
					m(func(x result) float64 { return x.Rate }), m(rate), m(func(x result) float64 { return x.CPU }), m(func(x result) float64 { return x.LateCPU }),
					m(func(x result) float64 { return x.BrokerCPU }), m(func(x result) float64 { return x.ServerCPU }),
					m(func(x result) float64 { return x.PeakMiB }), m(func(x result) float64 { return x.First }), m(func(x result) float64 { return x.Bytes }))
				for _, other := range []string{"debezium-tuned", "inflate", "read"} {
					if base := medianOf(r.of("backlog", other, perTx, ""), rate); base > 0 {
						fmt.Fprintf(&b, " %.2f |", m(rate)/base)
					} else {
						b.WriteString(" – |")
					}
				}
				b.WriteString("\n")
			}
		}
	}
	if most["capacity"] == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "\nCommit to visible, p50 / p99 in ms (cores used), medians of %d; shares of the slowest one's rate beside writers.\n\n| | cells/s beside writers |", most["latency"])
	for _, step := range steps {
		at := "–"
		for _, name := range names {
			if rs := r.of("latency", name, 0, step.name); len(rs) > 0 {
				at = fmt.Sprintf("%.0f/s", rs[0].Asked)
			}
		}
		if step.share > 0 {
			at = step.name + ", " + at
		}
		fmt.Fprintf(&b, " %s |", at)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(steps)) + "\n")
	for _, name := range names {
		rs := r.of("capacity", name, 0, "")
		if len(rs) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %.0f |", name, medianOf(rs, func(x result) float64 { return x.Rate }))
		for _, step := range steps {
			rs := r.of("latency", name, 0, step.name)
			if len(rs) == 0 {
				b.WriteString(" – |")
				continue
			}
			m := func(f func(result) float64) float64 { return medianOf(rs, f) }
			fmt.Fprintf(&b, " %.1f / %.1f (%.2f) |", m(func(x result) float64 { return x.P50 }), m(func(x result) float64 { return x.P99 }), m(func(x result) float64 { return x.Cores }))
		}
		b.WriteString("\n")
	}
	return b.String()
}
