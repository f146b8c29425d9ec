package rig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := runChild(strings.Split(text, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	dir, err := ownDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		os.Exit(1)
	}
	go removeOnSignal(dir)
	code := m.Run()
	mysqltest.Stop()
	kafkatest.Shutdown()
	_ = os.RemoveAll(dir) // a later run tries again
	os.Exit(code)
}

// ownDir puts everything of this run into one folder under TMPDIR, and removes
// those of runs that were killed: a backlog is gigabytes.
func ownDir() (string, error) {
	const prefix = "cellog-rig-"
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*")) // the pattern is legal
	for _, dir := range old {
		f, err := os.Open(dir)
		if err != nil {
			continue // gone, or another user's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil { // its run is over
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", err
	}
	lock, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) // held until this process ends
	if err == nil {
		err = syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB)
	}
	return dir, errors.Join(err, os.Setenv("TMPDIR", dir))
}

// removeOnSignal ends this process when it is interrupted, its children and
// their files first: a backlog may lie in memory.
func removeOnSignal(dir string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	<-c
	for range 100 {
		files, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is legal
		for _, file := range files {
			text, _ := os.ReadFile(file) // its thread may be gone
			for pid := range strings.FieldsSeq(string(text)) {
				if n, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
		}
		if os.RemoveAll(dir) == nil {
			break
		}
		time.Sleep(20 * time.Millisecond) // they are just dying
	}
	os.Exit(1)
}

// stallTimeout is for how long a run may stand still.
const stallTimeout = 2 * time.Minute

// options are what the environment says.
type options struct {
	subjects, values []string
	cells, runs      int
	perTx            []int
	load             time.Duration // at each rate
	out              string
}

// readOptions reads the variables of doc.go.
func readOptions(getenv func(string) string) (o options, err error) {
	get := func(name, def string) string { return cmp.Or(strings.TrimSpace(getenv(name)), def) }
	number := func(name, text string, low int) int {
		n, nerr := strconv.Atoi(text)
		if (nerr != nil || n < low) && err == nil {
			err = fmt.Errorf("%s=%s: want a number from %d on", name, text, low)
		}
		return n
	}
	o.subjects = strings.Split(get("CELLOG_RIG", "all"), ",")
	o.values = strings.Split(get("CELLOG_RIG_VALUES", "json,msgpack,stored"), ",")
	o.cells = number("CELLOG_RIG_CELLS", get("CELLOG_RIG_CELLS", "200000"), 0)
	o.runs = number("CELLOG_RIG_RUNS", get("CELLOG_RIG_RUNS", "1"), 1)
	o.load = time.Duration(number("CELLOG_RIG_SECONDS", get("CELLOG_RIG_SECONDS", "10"), 0)) * time.Second
	for text := range strings.SplitSeq(get("CELLOG_RIG_TX", "8,1"), ",") {
		o.perTx = append(o.perTx, number("CELLOG_RIG_TX", text, 1))
	}
	if o.out = getenv("CELLOG_RIG_OUT"); o.out != "" && err == nil {
		var st os.FileInfo
		if st, err = os.Stat(o.out); err == nil && !st.IsDir() {
			err = fmt.Errorf("CELLOG_RIG_OUT=%s: want a folder", o.out)
		}
	}
	return o, err
}

// rig is one run of everything.
type rig struct {
	o        options
	subjects []*subject
	raw      *os.File // nil: not kept
	results  []result
	told     map[string]bool // kinds of servers whose settings were printed
}

// open makes the file of the raw results, if they are to be kept.
func (r *rig) open() (err error) {
	if r.o.out != "" {
		r.raw, err = os.Create(filepath.Join(r.o.out, "out-"+time.Now().UTC().Format("2006-01-02T150405")+".jsonl"))
	}
	return err
}

// keep notes a result, and writes it at once.
func (r *rig) keep(tb testing.TB, v result) {
	tb.Helper()
	r.results = append(r.results, v)
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), v)
	r.write(tb, v)
}

// write adds a line to the raw results.
func (r *rig) write(tb testing.TB, v any) {
	tb.Helper()
	if r.raw == nil {
		return
	}
	if err := json.NewEncoder(r.raw).Encode(v); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkRig measures all that CELLOG_RIG names, once, and prints the tables.
func BenchmarkRig(b *testing.B) {
	if files := os.Getenv("CELLOG_RIG_TABLES"); files != "" {
		r, err := readRaw(strings.Split(files, ","))
		if err != nil {
			b.Fatal(err)
		}
		if b.N == 1 { // again and again without -benchtime 1x
			fmt.Print(r.tables())
		}
		return
	}
	if os.Getenv("CELLOG_RIG") == "" {
		b.Skip("set CELLOG_RIG=all, or run make rig: this takes minutes to hours, and an idle machine")
	}
	o, err := readOptions(os.Getenv)
	if err != nil {
		b.Fatal(err)
	}
	r := &rig{o: o, told: map[string]bool{}}
	if r.subjects, err = choose(o); err != nil {
		b.Fatal(err)
	}
	about := map[string]string{"date": time.Now().UTC().Format(time.RFC3339)}
	for _, s := range r.subjects {
		if s.debezium == nil {
			continue
		}
		if mysqltest.Flavour() != mysqlserver.MySQL || !kafkatest.Real() {
			b.Fatalf("%s wants %s=mysql and %s=real, or leave it out of CELLOG_RIG", s.name, mysqltest.EnvFlavour, kafkatest.EnvKafka)
		}
		dir, err := debeziumDir()
		if err != nil {
			b.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "versions"))
		if err != nil {
			b.Fatal(err)
		}
		about["debezium"] = strings.TrimSpace(string(text))
	}
	if err := r.open(); err != nil {
		b.Fatal(err)
	}
	measure(r, b, about)
	fmt.Print(r.tables())
	if r.raw != nil {
		fmt.Println("raw results:", r.raw.Name())
	}
}

// runner is what a benchmark and a test have in common.
type runner[T any] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

// measure runs all rounds; about says what they ran on.
func measure[T runner[T]](r *rig, t T, about map[string]string) {
	r.about(t, about)
	if r.o.cells > 0 {
		for _, perTx := range r.o.perTx {
			t.Run(fmt.Sprintf("backlog-%d", perTx), func(t T) { backlog(r, t, perTx) })
		}
	}
	if r.o.load > 0 {
		t.Run("latency", func(t T) { latency(r, t) })
	}
}

// medianOf is the median of a figure over results, 0 of none.
func medianOf(rs []result, f func(result) float64) float64 {
	if len(rs) == 0 {
		return 0
	}
	v := make([]float64, len(rs))
	for i := range rs {
		v[i] = f(rs[i])
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
