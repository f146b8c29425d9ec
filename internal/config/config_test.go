package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func getenv(key string) string {
	if key == "CELLOG_TAILER_PASSWORD" {
		return "from the environment"
	}
	return ""
}

func TestGoodFixtures(t *testing.T) {
	minimal, err := Load("testdata/good/minimal.yml", getenv)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Kafka.Brokers = []string{"127.0.0.1:9092"}
	want.Clusters = []Cluster{{Name: "c0", Nodes: []Node{{Name: "c0-n0", Addr: "127.0.0.1:3306"}}}}
	if diff := cmp.Diff(want, *minimal, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Errorf("minimal.yml (-want +got):\n%s", diff)
	}

	full, err := Load("testdata/good/full.yml", getenv)
	if err != nil {
		t.Fatal(err)
	}
	a := full.Clusters[0].Accounts
	if a.Worker.Password.Reveal() != "from a file" || a.Tailer.Password.Reveal() != "from the environment" || a.Indexer.Password.Reveal() != "" {
		t.Error("a password is not what its source holds")
	}
	if full.Indexer.Schemas != filepath.Join("testdata", "good", "schemas") {
		t.Errorf("schemas %q: want it relative to the file", full.Indexer.Schemas)
	}
	if full.Limits.QueueBytes != 32<<20 || full.Limits.BodyBytes != 1<<20 || full.Worker.ReadTimeout != 1500*time.Millisecond {
		t.Errorf("limits %+v, worker %+v", full.Limits, full.Worker)
	}
	if !full.Datastore("trips").MergedTopic || full.Datastore("notes").Ack != "primary" || full.Datastore("other").Ack != "primary" {
		t.Errorf("datastores %+v", full.Datastores)
	}
	// full.yml sets every key: nothing may be left zero.
	eachKey(reflect.ValueOf(*full), "", func(key string, v reflect.Value) {
		if v.IsZero() && !strings.Contains(key, "accounts.") && key != "datastores[].merged_topic" {
			t.Errorf("full.yml does not set %s, or it was lost", key)
		}
	})
}

// Each bad fixture is one mistake; its first line says what must be reported.
func TestBadFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yml")
	if err != nil || len(files) < 30 {
		t.Fatal(len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yml"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(text), "\n")
			want, ok := strings.CutPrefix(first, "# want ")
			if !ok {
				t.Fatal("the first line must begin with # want")
			}
			_, err = Load(f, getenv)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v\nwant     …%s…", err, want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a password: %v", err)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := Load("testdata/nowhere.yml", getenv); err == nil || !strings.Contains(err.Error(), "nowhere.yml") {
		t.Error(err)
	}
}

// A value that a file sets must come through the defaults unchanged, zeros
// included where they are legal.
func TestDefaultsDoNotOverwrite(t *testing.T) {
	text, err := os.ReadFile("testdata/good/minimal.yml")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Parse("x.yml", append(text, "worker: {shutdown_grace: 0s}\n"...))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Worker.ShutdownGrace != 0 {
		t.Errorf("shutdown_grace 0s became %v", cfg.Worker.ShutdownGrace)
	}
	if cfg.Worker.Listen != Default().Worker.Listen {
		t.Errorf("a section that is there lost its other defaults: %+v", cfg.Worker)
	}
}

// Of a file that says nothing only what is required is missed.
func TestEmptyFile(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing yet\n", "---\n"} {
		_, err := Parse("x.yml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), "kafka.brokers: want at least one") || strings.Contains(err.Error(), "worker.") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	s := NewSecret("hunter2")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "password", s, "account", Account{User: "u", Password: s})
	text := log.String() + fmt.Sprintf("%v %+v %#v %s %q", s, Account{Password: s}, s, s, s)
	if strings.Contains(text, "hunter2") {
		t.Errorf("printed: %s", text)
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]Bytes{"0": 0, "1": 1, "512KiB": 512 << 10, "8MiB": 8 << 20, "3 GiB": 3 << 30, "7B": 7} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "1.5MiB", "1MB", "MiB", "99999999999GiB"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("%q: %v accepted", in, got)
		}
	}
	for _, b := range []Bytes{0, 1, 1023, 1024, 8 << 20, 3 << 30, 1<<20 + 1} {
		if got, err := ParseBytes(b.String()); err != nil || got != b {
			t.Errorf("%d: printed %q, read %d, %v", b, b, got, err)
		}
	}
}

// docs/config.md has exactly the keys that there are, with their defaults.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = strings.TrimSpace(m[2])
	}
	eachKey(reflect.ValueOf(Default()), "", func(key string, v reflect.Value) {
		got, ok := documented[key]
		if !ok {
			t.Errorf("docs/config.md lacks %s", key)
			return
		}
		delete(documented, key)
		if v.IsZero() {
			return // required, empty, or said in words
		}
		if want := fmt.Sprintf("`%v`", v.Interface()); got != want {
			t.Errorf("docs/config.md: default of %s is %s, want %s", key, got, want)
		}
	})
	for key := range documented {
		t.Errorf("docs/config.md has %s, which does not exist", key)
	}
}

// eachKey calls f for every leaf; an empty list of sections is walked by one
// zero element.
func eachKey(v reflect.Value, path string, f func(string, reflect.Value)) {
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct {
		e := reflect.Zero(v.Type().Elem())
		if v.Len() > 0 {
			e = v.Index(0)
		}
		eachKey(e, path+"[]", f)
		return
	}
	if v.Kind() != reflect.Struct {
		f(path, v)
		return
	}
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("yaml")
		if tag == "-" {
			continue
		}
		if path != "" {
			tag = path + "." + tag
		}
		eachKey(v.Field(i), tag, f)
	}
}
