package feed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestBadConfigs(t *testing.T) {
	ok := Config{Group: "g", Topics: []string{"t"}, Handle: func(context.Context, Delivery) error { return nil }}
	if _, err := New(ok); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no group":      func(c *Config) { c.Group = "" },
		"no topics":     func(c *Config) { c.Topics = nil },
		"no function":   func(c *Config) { c.Handle = nil },
		"two functions": func(c *Config) { c.HandleBatch = func(context.Context, func() Batch) error { return nil } },
		"negative":      func(c *Config) { c.Parallel = -1 },
		"backoff":       func(c *Config) { c.BackoffMin = time.Hour },
	} {
		c := ok
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestMetricsOfTwoMembers(t *testing.T) {
	reg := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Registerer: reg, Handle: func(_ context.Context, d Delivery) error {
			if d.Attempt == 1 {
				return errPlanned
			}
			return nil
		}}
		_, s, stop := run(t, cfg)
		s.assign(fresh)
		s.give(p0, cell(1, 0), cell(1, 1))
		sleep(time.Second)
		got := map[string]float64{}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			got[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
		for name, want := range map[string]float64{"cells_total": 2, "failures_total": 2, "retries_total": 2, "partitions": 1, "stopped_partitions": 0, "duplicates_total": 0} {
			if got["cellog_feed_"+name] != want {
				t.Errorf("%s is %g, want %g", name, got["cellog_feed_"+name], want)
			}
		}
		cfg.Kafka.Addrs, cfg.Group, cfg.Topics = []string{"fake:1"}, "test", []string{"trips.BASE"}
		second, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); err == nil {
			t.Error("two members share metrics")
		}
		stop()
		if families, err := reg.Gather(); err != nil || len(families) != 0 {
			t.Errorf("%d families are left, %v", len(families), err)
		}
	})
}
