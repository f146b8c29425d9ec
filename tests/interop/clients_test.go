//go:build interop

package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// client reads a whole topic and prints each record as a line of JSON.
type client struct {
	name string
	// run returns the command; isolation is read_committed or
	// read_uncommitted.
	run func(t *testing.T, brokers, topic, isolation string) *exec.Cmd
	// parse reads one line of output; nil means seen's own JSON.
	parse func(line []byte) (seen, error)
}

// seen is a record as a client saw it.
type seen struct {
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Time      int64       `json:"time"` // milliseconds
	Key       string      `json:"key"`
	Value     string      `json:"value"`
	Headers   [][2]string `json:"headers"`
}

var clients = []client{
	{name: "kcat", parse: parseKcat, run: func(t *testing.T, brokers, topic, isolation string) *exec.Cmd {
		return exec.Command("kcat", "-C", "-q", "-J", "-e", "-o", "beginning", "-b", brokers, "-t", topic, "-X", "isolation.level="+isolation)
	}},
	{name: "confluent-kafka", run: script("confluent_consume.py")},
	{name: "kafka-python", run: script("kafka_python_consume.py")},
	{name: "aiokafka", run: script("aiokafka_consume.py")},
	{name: "java", run: func(t *testing.T, brokers, topic, isolation string) *exec.Cmd {
		return java(t, "Consume", brokers, topic, isolation)
	}},
}

func script(name string) func(t *testing.T, brokers, topic, isolation string) *exec.Cmd {
	return func(t *testing.T, brokers, topic, isolation string) *exec.Cmd {
		return python(t, name, brokers, topic, isolation)
	}
}

// parseKcat reads kcat's -J envelope.
func parseKcat(line []byte) (seen, error) {
	var k struct {
		Partition int32
		Offset    int64
		TS        int64
		Headers   []string
		Key       string
		Payload   string
	}
	if err := json.Unmarshal(line, &k); err != nil {
		return seen{}, err
	}
	s := seen{Partition: k.Partition, Offset: k.Offset, Time: k.TS, Key: k.Key, Value: k.Payload}
	for i := 0; i+1 < len(k.Headers); i += 2 {
		s.Headers = append(s.Headers, [2]string{k.Headers[i], k.Headers[i+1]})
	}
	return s, nil
}

// read runs a client and returns what it saw.
func (c client) read(t *testing.T, brokers, topic, isolation string) []seen {
	t.Helper()
	out := output(t, c.run(t, brokers, topic, isolation), nil)
	var all []seen
	for line := range bytes.Lines(out) {
		var s seen
		var err error
		if c.parse != nil {
			s, err = c.parse(line)
		} else {
			err = json.Unmarshal(line, &s)
		}
		if err != nil {
			t.Fatalf("%s printed %.200q: %v", c.name, line, err)
		}
		all = append(all, s)
	}
	return all
}

// output runs a command to its end, at most a minute.
func output(t *testing.T, cmd *exec.Cmd, stdin []byte) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (run tools/install-deps.sh clients)", err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, errs.Bytes())
	}
	return out.Bytes()
}

// here is this package's folder.
func here() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// cache is where the clients are installed.
func cache() string { return filepath.Join(here(), "..", "..", ".cache", "interop") }

// install runs commands once for each content of a file that pins versions.
func install(t *testing.T, name, pins string, commands ...[]string) string {
	t.Helper()
	want, err := os.ReadFile(filepath.Join(here(), pins))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache(), name)
	stamp := filepath.Join(dir, ".installed")
	if have, err := os.ReadFile(stamp); err == nil && bytes.Equal(have, want) {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, c := range commands {
		cmd := exec.CommandContext(ctx, c[0], c[1:]...)
		cmd.Dir = here()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v (run tools/install-deps.sh clients)\n%s", strings.Join(c, " "), err, out)
		}
	}
	if err := os.WriteFile(stamp, want, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// python runs a script of ./python with the pinned clients.
func python(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(cache(), "python")
	install(t, "python", "python/requirements.txt",
		[]string{"python3", "-m", "venv", dir},
		[]string{filepath.Join(dir, "bin", "pip"), "install", "-q", "-r", "python/requirements.txt"})
	return exec.Command(filepath.Join(dir, "bin", "python"), append([]string{filepath.Join(here(), "python", name)}, args...)...)
}

// java runs a class of ./java with the pinned client.
func java(t *testing.T, class string, args ...string) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(cache(), "java")
	install(t, "java", "java/pom.xml",
		[]string{"mvn", "-q", "-B", "-f", "java/pom.xml", "dependency:copy-dependencies", "-DoutputDirectory=" + dir})
	return exec.Command("java", append([]string{"-cp", filepath.Join(dir, "*"), filepath.Join(here(), "java", class+".java")}, args...)...)
}

// logVersions logs what is being tested.
func logVersions(t *testing.T) {
	t.Helper()
	pip := python(t, "")
	pip.Args = []string{pip.Path, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"}
	for line := range strings.Lines(string(output(t, pip, nil))) {
		if strings.Contains(line, "kafka") {
			t.Log(strings.TrimSpace(line))
		}
	}
	java(t, "Consume")
	jars, _ := filepath.Glob(filepath.Join(cache(), "java", "kafka-clients-*.jar"))
	for _, jar := range jars {
		t.Log(filepath.Base(jar))
	}
	for line := range strings.Lines(string(output(t, exec.Command("kcat", "-V"), nil))) {
		if strings.HasPrefix(line, "Version") {
			t.Log("kcat " + strings.TrimSpace(line))
		}
	}
}
