package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// show draws the table: every second in place, or a line every three seconds.
func (d *demo) show(ctx context.Context) error {
	every, lines := 3*time.Second, 0
	if d.cfg.Live {
		every = time.Second
	}
	last, lastTrips := d.began, 0
	for sleepUntil(ctx, time.Now().Add(every)) {
		d.lookAtBilling()
		_, _, trips, _ := d.watch.counts()
		now := time.Now()
		rate := float64(trips-lastTrips) / now.Sub(last).Seconds()
		last, lastTrips = now, trips
		if !d.cfg.Live {
			fmt.Fprintln(d.cfg.Out, d.line(rate))
			continue
		}
		text := d.table(rate)
		if lines > 0 {
			fmt.Fprintf(d.cfg.Out, "\x1b[%dA\x1b[J", lines)
		}
		fmt.Fprint(d.cfg.Out, text)
		lines = strings.Count(text, "\n")
	}
	return nil
}

// line is the table in one line.
func (d *demo) line(rate float64) string {
	records, _, trips, open := d.watch.counts()
	g := d.gateway.Stats()
	p50 := func(l *lags) string { s := l.lately(); return fmt.Sprintf("%.1f/%.0f", s.P50, s.P99) }
	return fmt.Sprintf("%4.0fs %5.0f trips/s  put %s  kafka %s  billing %s  status %s  index %s ms (p50/p99)  trips %d, open %d, charged %d, declined %d, replays %d, notes %d, adjustments %d, kills %d",
		time.Since(d.began).Seconds(), rate, p50(&d.load.puts), p50(&d.watch.toKafka), p50(&d.billing), p50(&d.watch.toStatus), p50(&d.asker.visible),
		trips, open, g.Charged, g.Declined, g.Replays, records[columnNotes], records[columnAdjustment], len(d.child.all()))
}

func (d *demo) table(rate float64) string {
	records, _, trips, open := d.watch.counts()
	stored, behind := d.load.counts()
	g := d.gateway.Stats()
	queries, late := d.asker.counts()
	var b strings.Builder
	fmt.Fprintf(&b, "cellog demo  %.0f of %.0f s, seed %d, %.0f trips/s, the city runs %.0f times as fast as life",
		time.Since(d.began).Seconds(), d.cfg.For.Seconds(), d.cfg.Seed, rate, Speed(d.cfg.Rate))
	if behind > time.Second {
		fmt.Fprintf(&b, ", %.0f s behind", behind.Seconds())
	}
	fmt.Fprintf(&b, "\n\n  %-34s %9s %9s %9s\n", "lag in ms, since the last look", "p50", "p99", "max")
	row := func(name string, l *lags) {
		s := l.lately()
		fmt.Fprintf(&b, "  %-34s %9.1f %9.1f %9.1f\n", name, s.P50, s.P99, s.Max)
	}
	row("put: request to answer", &d.load.puts)
	row("put answer to Kafka", &d.watch.toKafka)
	row("put answer to card gateway", &d.billing)
	row("put answer to STATUS in Kafka", &d.watch.toStatus)
	row("put answer to index", &d.asker.visible)
	fmt.Fprintf(&b, "\n  %-16s %9s %9s\n", "cells", "answered", "in Kafka")
	for _, column := range []string{columnBase, columnNotes, columnAdjustment} {
		fmt.Fprintf(&b, "  %-16s %9d %9d\n", column, stored[column], records[column])
	}
	fmt.Fprintf(&b, "  %-16s %9s %9d\n", columnStatus, "", records[columnStatus])
	fmt.Fprintf(&b, "\n  trips %d, unbilled %d; gateway: %d charged, %d declined, %d replays, %d refused, %d answers lost\n",
		trips, open, g.Charged, g.Declined, g.Replays, g.Refused, g.Lost)
	fmt.Fprintf(&b, "  billing process killed %d times; index: %d queries, %d late\n", len(d.child.all()), queries, late)
	return b.String()
}

// Print writes a report for people.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "\nlag in ms, all in all            p50        p99        max   (with the kills)\n")
	row := func(name string, l Lag) {
		fmt.Fprintf(out, "  %-24s %9.1f %10.1f %10.1f\n", name, l.P50, l.P99, l.Max)
	}
	row("put", r.Puts)
	row("put answer to Kafka", r.ToKafka)
	row("… to card gateway", r.ToBilling)
	row("… to STATUS in Kafka", r.ToStatus)
	row("… to index", r.ToIndex)
	for _, k := range r.Kills {
		when := "between charge and STATUS"
		if k.StatusWasThere {
			when = "after STATUS"
		}
		fmt.Fprintf(out, "killed billing at charge %s, %s\n", k.Key, when)
	}
	v := &r.Verify
	fmt.Fprintf(out, "\nverify: %s\n  shards %d, cells %d, records %d, missing %d, duplicates %d, out of order %d, holes %d, body mismatch %d\n",
		verdict(v.Clean()), v.Shards, v.Cells, v.Records, v.Missing, v.Duplicates, v.OutOfOrder, v.Holes, v.BodyMismatch)
	for _, i := range v.Indexes {
		fmt.Fprintf(out, "  index %s: entries %d, missing %d, stale %d, extra %d\n", i.Name, i.Entries, i.Missing, i.Stale, i.Extra)
	}
	fmt.Fprintf(out, "index: %s\n  %d queries, %d answers late, %d wrong at the end\n", verdict(r.IndexLate == 0 && r.IndexWrong == 0), r.IndexQueries, r.IndexLate, r.IndexWrong)
	a := r.Accounts
	fmt.Fprintf(out, "accounts: %s\n  trips %d, charged once %d, declined %d, differences %d; charged %s for fares of %s; the gateway answered %d repeats from its books\n",
		verdict(a.Differences == 0), a.Trips, a.Charged, a.Declined, a.Differences, a.Amount, a.Fares, r.Gateway.Replays)
	for _, text := range a.Details {
		fmt.Fprintf(out, "  %s\n", text)
	}
	if !r.Drained {
		fmt.Fprintf(out, "the stream did not drain in time: cells %v, records %v\n", r.Cells, r.Records)
	}
	if r.Twice > 0 {
		fmt.Fprintf(out, "%d records came twice\n", r.Twice)
	}
	fmt.Fprintf(out, "demo: %s\n", verdict(r.OK))
}

func verdict(ok bool) string {
	if ok {
		return "clean"
	}
	return "NOT CLEAN"
}
