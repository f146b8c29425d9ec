package obs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, a *Admin, path string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Get("http://" + a.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func startAdmin(t *testing.T, cfg Config) *Admin {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestHealth(t *testing.T) {
	a := startAdmin(t, Config{})
	if code, text := get(t, a, "/livez"); code != 200 || text != "ok\n" {
		t.Error(code, text)
	}
	if code, _ := get(t, a, "/readyz"); code != 200 {
		t.Error("not ready without checks:", code)
	}
	a.AddCheck("mysql", func(context.Context) error { return errors.New("no master") })
	a.AddCheck("kafka", func(context.Context) error { return nil })
	if code, text := get(t, a, "/readyz?verbose"); code != 503 || text != "[+] kafka\n[-] mysql: no master\n" {
		t.Errorf("%d %q", code, text)
	}
	code, text := get(t, a, "/readyz?format=json")
	var v struct {
		Ready  bool
		Checks []checkResult
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil || code != 503 || v.Ready || len(v.Checks) != 2 {
		t.Error(code, text, err)
	}
	a.AddCheck("mysql", func(context.Context) error { return nil })
	if code, text := get(t, a, "/readyz"); code != 200 || text != "ok\n" {
		t.Errorf("%d %q", code, text)
	}
}

// A check that hangs costs its deadline, and says so.
func TestHangingCheck(t *testing.T) {
	a := startAdmin(t, Config{CheckTimeout: 1})
	a.AddCheck("stuck", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	if failed := a.RunChecks(t.Context()); !strings.Contains(failed["stuck"].Error(), "deadline") {
		t.Error(failed)
	}
}

func TestMetricsAndPProf(t *testing.T) {
	a := startAdmin(t, Config{PProf: true})
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "cellog_test_total", Help: "A test."})
	a.Registry().MustRegister(c)
	c.Inc()
	if code, text := get(t, a, "/metrics"); code != 200 || !strings.Contains(text, "cellog_test_total 1") || !strings.Contains(text, "go_goroutines") {
		t.Error(code, text)
	}
	if code, _ := get(t, a, "/debug/pprof/cmdline"); code != 200 {
		t.Error(code)
	}
	b := startAdmin(t, Config{})
	if code, _ := get(t, b, "/debug/pprof/cmdline"); code != 404 {
		t.Error("pprof without being asked for:", code)
	}
}

func TestStartStop(t *testing.T) {
	for range 20 {
		a, err := New(Config{Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _ = a.Start(context.Background()) })
			wg.Go(func() { _ = a.Stop(context.Background()) })
		}
		wg.Wait()
		for range 2 {
			if err := a.Stop(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Start(t.Context()); err == nil {
			t.Fatal("started after Stop")
		}
	}
	a := startAdmin(t, Config{})
	if err := a.Start(t.Context()); err != nil {
		t.Error("second Start:", err)
	}
	b, err := New(Config{Listen: a.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err == nil {
		t.Error("two on one address")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no Listen")
	}
}

func TestLogger(t *testing.T) {
	var w strings.Builder
	l := NewLogger(&w, LogConfig{Level: "warn", Format: "json"})
	l.Info("hidden")
	l.Warn("shown", "shard", 3)
	if got := w.String(); strings.Contains(got, "hidden") || !strings.Contains(got, `"shard":3`) {
		t.Error(got)
	}
	Discard().Error("nowhere")
}
