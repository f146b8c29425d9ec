package rig

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
)

// result is what one process was seen to do: a line of the raw results.
type result struct {
	Kind    string  `json:"kind"` // backlog, capacity or latency
	Subject string  `json:"subject"`
	Run     int     `json:"run"`
	PerTx   int     `json:"cells_per_transaction"`
	Cells   int64   `json:"cells"`
	Rate    float64 `json:"cells_per_second"` // of a backlog: from the first cell seen to the last

	// Of a backlog. Late figures are those of its second half.
	LateRate  float64  `json:"late_cells_per_second,omitempty"`
	CPU       float64  `json:"cpu_us_per_cell,omitempty"` // from the first cell seen to the last
	LateCPU   float64  `json:"late_cpu_us_per_cell,omitempty"`
	BrokerCPU float64  `json:"broker_cpu_us_per_cell,omitempty"`
	ServerCPU float64  `json:"server_cpu_us_per_cell,omitempty"`
	PeakMiB   float64  `json:"peak_mib,omitempty"`
	First     float64  `json:"seconds_to_first_cell,omitempty"`
	Bytes     float64  `json:"kafka_bytes_per_cell,omitempty"`
	Key       int      `json:"key_bytes,omitempty"` // of one record, before compression
	Value     int      `json:"value_bytes,omitempty"`
	Headers   int      `json:"header_bytes,omitempty"`
	Samples   []sample `json:"samples,omitempty"` // one a second

	// Of a load: how fast cells were to come, the wait from the return of
	// their commit to their sight, and the process's share of cores.
	Step  string  `json:"step,omitempty"`
	Asked float64 `json:"asked_cells_per_second,omitempty"`
	P50   float64 `json:"p50_ms,omitempty"`
	P99   float64 `json:"p99_ms,omitempty"`
	Max   float64 `json:"max_ms,omitempty"`
	Cores float64 `json:"cores,omitempty"`
}

// String is the result in a line.
func (r result) String() string {
	switch r.Kind {
	case "backlog":
		return fmt.Sprintf("%s %d: %.0f cells/s, %.1f µs a cell; second half %.0f, %.1f; %.0f MiB", r.Subject, r.PerTx, r.Rate, r.CPU, r.LateRate, r.LateCPU, r.PeakMiB)
	case "capacity":
		return fmt.Sprintf("%s: %.0f cells/s beside writers at full speed", r.Subject, r.Rate)
	}
	return fmt.Sprintf("%s at %s, %.0f cells/s: p50 %.1f, p99 %.1f, max %.1f ms; %.2f cores", r.Subject, r.Step, r.Rate, r.P50, r.P99, r.Max, r.Cores)
}

// sample is what a process had done so long after its start.
type sample struct {
	At     time.Duration `json:"ns"`
	Cells  int64         `json:"cells"`
	CPU    time.Duration `json:"cpu_ns"`
	Broker time.Duration `json:"broker_cpu_ns"`
	Server time.Duration `json:"server_cpu_ns"`
}

// about keeps what everything runs on.
func (r *rig) about(tb testing.TB, about map[string]string) {
	tb.Helper()
	about["kind"], about["go"], about["cores"] = "about", runtime.Version(), strconv.Itoa(runtime.NumCPU())
	about["broker"] = "kfake"
	if kafkatest.Real() {
		about["broker"] = "Apache Kafka"
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				about["cpu"] = strings.TrimSpace(v)
			}
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		about["load"] = strings.TrimSpace(string(text))
	}
	fmt.Println(about)
	r.write(tb, about)
	for _, s := range r.subjects {
		if d := s.debezium; d != nil {
			set := map[string]any{"kind": "debezium", "subject": s.name, "jvm": d.jvm, "worker": d.worker, "connector": d.connector}
			fmt.Println(set)
			r.write(tb, set)
		}
	}
}

// newWorld starts a server with empty shards; more are its options.
func (r *rig) newWorld(tb testing.TB, kind string, options ...string) *world {
	tb.Helper()
	w := &world{node: mysqltest.Start(tb, append([]string{"--innodb-buffer-pool-size=256M"}, options...)...), dir: tb.TempDir()}
	w.node.CreateShards(tb, datastore, shards)
	if r.hasDebezium() {
		w.node.Exec(tb, primeTable)
	}
	settings := map[string]string{"kind": "server", "for": kind, "version": w.node.Version(), "shards": strconv.Itoa(shards)}
	for _, name := range []string{"sync_binlog", "innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size", "binlog_format", "binlog_row_image"} {
		settings[name] = w.node.Query(tb, "SELECT @@global."+name)
	}
	if !r.told[kind] {
		r.told[kind] = true
		fmt.Println(settings)
		r.write(tb, settings)
	}
	return w
}

func (r *rig) hasDebezium() bool {
	return slices.ContainsFunc(r.subjects, func(s *subject) bool { return s.debezium != nil })
}

// backlog writes a backlog once and has every subject drain it, in turns.
func backlog[T runner[T]](r *rig, t T, perTx int) {
	// Nothing commits while it is drained, so the writing may be fast.
	w := r.newWorld(t, "backlogs", "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0", "--loose-innodb-redo-log-capacity=512M")
	if r.hasDebezium() {
		w.newBroker(t)
		w.prime(t)
	}
	n := max(1, r.o.cells/perTx) * perTx
	w.noteEnd(t)
	began := time.Now()
	size := fill(t, w.node, n, perTx)
	binlog, all := diskUse(w.node.Dir())
	fill := map[string]string{"kind": "fill", "cells": strconv.Itoa(n), "cells_per_transaction": strconv.Itoa(perTx), "took": time.Since(began).Round(time.Second).String(),
		"stored_bytes": strconv.FormatInt(size.stored.Load()/int64(n), 10), "json_bytes": strconv.FormatInt(size.json.Load()/int64(n), 10),
		"binlog_bytes": strconv.FormatInt(binlog/int64(n), 10), "server_mib": strconv.FormatInt(all>>20, 10)}
	fmt.Println(fill)
	r.write(t, fill)
	for run := range r.o.runs {
		for _, s := range r.subjects {
			t.Run(fmt.Sprintf("%s-%d", s.name, run+1), func(t T) { // one that fails does not end the others
				res := w.drain(t, s, int64(n))
				res.Run, res.PerTx = run+1, perTx
				r.keep(t, res)
			})
		}
	}
}

// diskUse adds up the files of a server: those of its binlog, and all.
func diskUse(dir string) (binlog, all int64) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error { // a file that goes meanwhile is not counted
		if err != nil || d.IsDir() {
			return nil
		}
		if st, err := d.Info(); err == nil {
			all += st.Size()
			if strings.HasPrefix(d.Name(), "binlog.") {
				binlog += st.Size()
			}
		}
		return nil
	})
	return binlog, all
}

// drain has a subject drain the n cells of the world's backlog.
func (w *world) drain(tb testing.TB, s *subject, n int64) result {
	tb.Helper()
	kafkatest.Shutdown() // a limit is alone with the server
	broker := 0
	var c *counter
	var places []place
	if !s.limit() {
		w.newBroker(tb)
		broker = w.broker.PID()
		places = w.places(tb, s)
		c = count(tb, w.broker.Addrs(), places, false)
		defer c.stop()
	}
	server := w.node.PID()
	broker0, server0, rows0 := cpuTime(broker), cpuTime(server), w.rowsRead(tb)
	p := w.start(tb, s, int(n))
	defer p.stop()
	size := int64(0)
	look := func() int64 {
		if c == nil {
			cells, _ := strconv.ParseInt(p.printed(), 10, 64) // nothing yet
			return cells
		}
		cells, b, err := c.total()
		if err != nil {
			tb.Fatal(err)
		}
		size = b
		return cells
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var samples []sample
	moved := time.Now()
	for last := int64(0); last < n; {
		<-tick.C
		w.mustLive(tb, p)
		x := sample{Cells: look(), At: time.Since(p.began), CPU: cpuTime(p.pid), Broker: cpuTime(broker) - broker0, Server: cpuTime(server) - server0}
		samples = append(samples, x)
		if x.Cells != last {
			last, moved = x.Cells, time.Now()
		}
		if time.Since(moved) > stallTimeout {
			tb.Fatalf("%s stands still at %d of %d cells for %v:\n%s", s.name, last, n, stallTimeout, p.logTail())
		}
	}
	peak := peakMiB(p.pid)
	p.stop() // what it still had to send is sent now
	if all := look(); all != n {
		tb.Fatalf("%s made %d records of %d cells", s.name, all, n)
	}
	// A tailer that lost its place reads the tables instead, which is another thing.
	if rows := w.rowsRead(tb) - rows0; rows > n/2 {
		tb.Fatalf("%s read %d rows of tables: it did not follow the binlog", s.name, rows)
	}
	res := figures(samples, n)
	res.Subject, res.PeakMiB, res.Bytes = s.name, peak, float64(size)/float64(n)
	if c != nil {
		res.Key, res.Value, res.Headers = mustHoldCell(tb, w, s, places[0])
	}
	return res
}

// figures makes a backlog's figures of samples, the last of which has all n
// cells.
func figures(samples []sample, n int64) result {
	at := func(cells int64) int {
		return slices.IndexFunc(samples, func(s sample) bool { return s.Cells >= cells })
	}
	first, half, last := samples[at(1)], samples[at((n+1)/2)], samples[len(samples)-1]
	res := result{Kind: "backlog", Cells: n, First: first.At.Seconds()}
	if first.Cells == n { // too few to be seen on their way
		first = sample{}
	}
	if half.Cells == n {
		half = first
	}
	per := func(d time.Duration, since sample) float64 {
		return float64(d.Nanoseconds()) / 1e3 / float64(n-since.Cells)
	}
	rate := func(since sample) float64 { return float64(n-since.Cells) / (last.At - since.At).Seconds() }
	res.Rate, res.LateRate = rate(first), rate(half)
	res.CPU, res.LateCPU = per(last.CPU-first.CPU, first), per(last.CPU-half.CPU, half)
	res.BrokerCPU, res.ServerCPU = per(last.Broker-first.Broker, first), per(last.Server-first.Server, first)
	for _, s := range samples {
		if k := len(res.Samples); k == 0 || s.At-res.Samples[k-1].At >= time.Second || s.Cells == n {
			res.Samples = append(res.Samples, s)
		}
	}
	return res
}

// latency finds what each subject can do beside writers, and then how long
// cells take at shares of what the slowest can.
func latency[T runner[T]](r *rig, t T) {
	var tailers []*subject
	for _, s := range r.subjects {
		if !s.limit() {
			tailers = append(tailers, s)
		}
	}
	each := func(f func(T, *world, *subject, *process, *load, *counter, int)) {
		for run := range r.o.runs {
			for _, s := range tailers {
				t.Run(fmt.Sprintf("%s-%d", s.name, run+1), func(t T) {
					w := r.newWorld(t, "latencies")
					w.newBroker(t)
					c := count(t, w.broker.Addrs(), w.places(t, s), true)
					p := w.start(t, s, 0)
					if s.debezium != nil {
						w.flow(t, p)
					}
					l := newLoad(t, w.node)
					r.put(t, w, p, l, c, 320, 1, time.Second) // it flows now
					f(t, w, s, p, l, c, run+1)
					p.stop()
					c.stop()
				})
			}
		}
	}
	each(func(t T, w *world, s *subject, p *process, l *load, c *counter, run int) {
		r.put(t, w, p, l, c, 0, 8, r.o.load) // warms a JVM
		began := time.Now()
		r.put(t, w, p, l, c, 0, 8, 2*r.o.load)
		cells, took := seenBetween(c, began.Add(r.o.load), began.Add(2*r.o.load))
		r.keep(t, result{Kind: "capacity", Subject: s.name, Run: run, PerTx: 8, Cells: cells, Rate: float64(cells) / took.Seconds()})
	})
	slowest := math.Inf(1)
	for _, s := range tailers {
		if rs := r.of("capacity", s.name, 0, ""); len(rs) > 0 {
			slowest = min(slowest, medianOf(rs, func(r result) float64 { return r.Rate }))
		}
	}
	if t.Failed() || math.IsInf(slowest, 1) || slowest < 1 {
		return // nothing was measured, and it was said why
	}
	each(func(t T, w *world, s *subject, p *process, l *load, c *counter, run int) {
		r.put(t, w, p, l, c, slowest/2, 8, 2*r.o.load) // warms a JVM
		for _, step := range steps {
			rate, perTx := 50.0, 1
			if step.share > 0 {
				rate, perTx = step.share*slowest, 8
			}
			from, _ := l.written()
			cpu, began := cpuTime(p.pid), time.Now()
			cells := r.put(t, w, p, l, c, rate, perTx, r.o.load)
			took := time.Since(began) // with the wait for the last cells
			res := waits(l, c, from)
			res.Kind, res.Subject, res.Run, res.PerTx, res.Step, res.Asked = "latency", s.name, run, perTx, step.name, rate
			res.Cells, res.Rate, res.Cores = int64(cells), float64(cells)/r.o.load.Seconds(), (cpuTime(p.pid)-cpu).Seconds()/took.Seconds()
			r.keep(t, res)
		}
	})
}

// seenBetween counts the records that were seen after one time and until
// another, or until the first of them was if that is later: a slow subject may
// show nothing for as long as a short run lasts.
func seenBetween(c *counter, from, to time.Time) (n int64, took time.Duration) {
	var after []mark // each with the records since the one before
	first := time.Time{}
	for i := range c.marks {
		had := int64(0)
		for _, m := range c.seen(i) {
			if m.at.After(from) {
				after = append(after, mark{m.n - had, m.at})
				if first.IsZero() || m.at.Before(first) {
					first = m.at
				}
			}
			had = m.n
		}
	}
	if first.After(to) {
		to = first
	}
	for _, m := range after {
		if !m.at.After(to) {
			n += m.n
		}
	}
	return n, to.Sub(from)
}

// steps are the loads at which latencies are measured.
var steps = []struct {
	name  string
	share float64 // of what the slowest can; 0: 50 cells a second
}{{"50/s", 0}, {"25 %", 0.25}, {"50 %", 0.50}, {"75 %", 0.75}}

// put writes a load and returns, when all of it is seen, how many cells it was.
func (r *rig) put(tb testing.TB, w *world, p *process, l *load, c *counter, rate float64, perTx int, length time.Duration) int {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), length+stallTimeout)
	defer cancel()
	cells, err := l.put(ctx, rate, perTx, length)
	if err != nil {
		tb.Fatalf("load: %v", err)
	}
	_, all := l.written()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	moved, last := time.Now(), int64(0)
	for {
		n, _, err := c.total()
		switch {
		case err != nil:
			tb.Fatal(err)
		case n == all:
			return cells
		case n > all:
			tb.Fatalf("%s made %d records of %d cells", p.name, n, all)
		case n != last:
			moved, last = time.Now(), n
		case time.Since(moved) > stallTimeout:
			tb.Fatalf("%s stands still at %d of %d cells for %v:\n%s", p.name, n, all, stallTimeout, p.logTail())
		}
		w.mustLive(tb, p)
		<-tick.C
	}
}

// waits holds the cells that were written after from against their sight. A
// shard's cells come in order, so the k-th record is the k-th cell.
func waits(l *load, c *counter, from [shards]int) result {
	var took []float64
	for i := range shards {
		marks := c.seen(i)
		for k := from[i]; k < len(l.commits[i]); k++ {
			for marks[0].n <= int64(k) {
				marks = marks[1:]
			}
			wait := marks[0].at.Sub(l.commits[i][k]) // less than zero: seen before the answer came
			took = append(took, max(0, wait.Seconds()*1e3))
		}
	}
	slices.Sort(took)
	at := func(p float64) float64 { return took[int(float64(len(took)-1)*p)] }
	return result{P50: at(0.5), P99: at(0.99), Max: at(1)}
}

// of returns the results of a kind and subject; perTx 0 and an empty step stand
// for any.
func (r *rig) of(kind, subject string, perTx int, step string) (out []result) {
	for _, x := range r.results {
		if x.Kind == kind && x.Subject == subject && (perTx == 0 || x.PerTx == perTx) && (step == "" || x.Step == step) {
			out = append(out, x)
		}
	}
	return out
}
