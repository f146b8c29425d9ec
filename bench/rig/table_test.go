package rig

import (
	"fmt"
	"strings"
)

// tables are the medians of all results, as Markdown.
func (r *rig) tables() string {
	var b strings.Builder
	rate := func(x result) float64 { return x.LateRate }
	if r.o.cells > 0 {
		for _, perTx := range r.o.perTx {
			fmt.Fprintf(&b, "\nA backlog of %d cells in transactions of %d; medians of %d; CPU in µs a cell, ratios of the second half's rates.\n\n", r.o.cells/perTx*perTx, perTx, r.o.runs)
			b.WriteString("| | cells/s, whole / second half | CPU, whole / second half | broker's CPU | server's CPU | peak MiB | s to the first cell | bytes a cell in Kafka | × debezium-tuned | × inflate | × read |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
			for _, s := range r.subjects {
				rs := r.of("backlog", s.name, perTx, "")
				if len(rs) == 0 {
					continue
				}
				m := func(f func(result) float64) float64 { return medianOf(rs, f) }
				fmt.Fprintf(&b, "| %s | %.0f / %.0f | %.1f / %.1f | %.1f | %.1f | %.0f | %.1f | %.0f |", s.name,
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
	if r.o.load == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "\nCommit to visible, p50 / p99 in ms (cores used), medians of %d; shares of the slowest one's rate beside writers.\n\n| | cells/s beside writers |", r.o.runs)
	for _, step := range steps {
		at := "–"
		for _, s := range r.subjects {
			if rs := r.of("latency", s.name, 0, step.name); len(rs) > 0 {
				at = fmt.Sprintf("%.0f/s", rs[0].Asked)
			}
		}
		if step.share > 0 {
			at = step.name + ", " + at
		}
		fmt.Fprintf(&b, " %s |", at)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(steps)) + "\n")
	for _, s := range r.subjects {
		rs := r.of("capacity", s.name, 0, "")
		if len(rs) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %.0f |", s.name, medianOf(rs, func(x result) float64 { return x.Rate }))
		for _, step := range steps {
			rs := r.of("latency", s.name, 0, step.name)
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
