package chaos

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/tests/harness"
)

// injected counts the faults, without the control.
func (c *chaos) injected() (n int) {
	for k, of := range c.faults {
		if k != nothing.kind {
			n += of
		}
	}
	return n
}

// report prints what happened, and how to see it again.
func (c *chaos) report(v verified, seed uint64, seconds int) {
	c.t.Helper()
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "fault\tinjected\tno 201, max\ttotal\tno 2xx, max\ttotal\tfailed puts\tfirst event after, max\t") // errors come with Flush
	var all gaps
	for _, k := range slices.Sorted(maps.Keys(c.faults)) {
		first := "-"
		if d, ok := c.first[k]; ok {
			first = short(d)
		}
		worst, total := c.worst[k], c.total[k]
		if k != nothing.kind {
			all = all.plus(total)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t\n", k, c.faults[k], short(worst.noCreated), short(total.noCreated), short(worst.noSuccess), short(total.noSuccess), total.failed, first)
	}
	fmt.Fprintf(w, "all\t%d\t\t%s\t\t%s\t%d\t\t\n", c.injected(), short(all.noCreated), short(all.noSuccess), all.failed)
	if err := w.Flush(); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("faults, and for how long no put to one of the clusters succeeded:\n%s", out.String())
	a := v.Acks
	c.t.Logf("%d cells acknowledged, %d accepted (%d rejected later); answers by status %v", a.Acknowledged, a.Accepted, a.Rejected, c.l.statuses)
	c.t.Logf("%d faults; lost %d, duplicated %d, reordered %d, holes %d, untrue answers %d", c.injected(), v.lost(), v.Duplicates, v.OutOfOrder, v.Holes, v.untrue())
	c.t.Logf("replay with %smake chaos SEED=%d DURATION=%d", environment(), seed, seconds)
	if c.injected() == 0 {
		c.t.Error("no fault was injected")
	}
}

func short(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

func brokerKind() string {
	if kafkatest.Real() {
		return "kafka"
	}
	return "embedded"
}

// environment is what a replay needs besides the seed, without paths.
func environment() (out string) {
	if f := harness.Flavour(); f != "mariadb" {
		out = "CELLOG_TEST_FLAVOUR=" + f + " "
	}
	if kafkatest.Real() {
		out += "CELLOG_TEST_KAFKA=real "
	}
	if kinds := os.Getenv("CELLOG_CHAOS_KINDS"); kinds != "" {
		out += fmt.Sprintf("CELLOG_CHAOS_KINDS=%q ", kinds)
	}
	return out
}

// ledger appends the run to the file that CELLOG_CHAOS_LEDGER names, see
// tools/chaos.sh, which writes its header.
func (c *chaos) ledger(seed uint64, seconds int, v verified) {
	c.t.Helper()
	file := os.Getenv("CELLOG_CHAOS_LEDGER")
	if file == "" {
		return
	}
	result := "ok"
	if c.t.Failed() {
		result = "FAIL"
	}
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(c.faults)) {
		worst := c.worst[k]
		away := fmt.Sprintf("%s / %s, %d failed", short(worst.noCreated), short(worst.noSuccess), worst.failed)
		if d, ok := c.first[k]; ok {
			away += ", " + short(d)
		}
		kinds = append(kinds, fmt.Sprintf("%s %d (%s)", k, c.faults[k], away))
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer f.Close()
	a := v.Acks
	if _, err := fmt.Fprintf(f, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", time.Now().UTC().Format(time.RFC3339), os.Getenv("CELLOG_CHAOS_COMMIT"),
		harness.Flavour(), brokerKind(), seed, seconds, c.injected(), a.Acknowledged, a.Accepted, a.Rejected, v.lost(), v.Duplicates, v.OutOfOrder, result, strings.Join(kinds, ", ")); err != nil {
		c.t.Error(err)
	}
}
