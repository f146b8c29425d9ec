package httpapi

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// A batch whose items all fail is one line of log for each code, not one an
// item: at ten thousand cells a batch an outage would fill the disk.
func TestFailedItemsAreLoggedTogether(t *testing.T) {
	var log bytes.Buffer
	a := newTestAPI(t, func(c *Config, f *fake) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		f.fault = func(string) error { return codedError{"damaged", 0} }
	})
	var puts, gets []string
	for i := range 50 {
		puts = append(puts, fmt.Sprintf(`{"row_key":"%s","column":"BASE","ref_key":%d,"body":1}`, aRow, i))
		gets = append(gets, fmt.Sprintf(`{"row_key":"%s","column":"BASE","ref_key":%d}`, aRow, i))
	}
	for path, items := range map[string][]string{"/v1/trips/cells": puts, "/v1/trips/cells/get": gets} {
		log.Reset()
		w := do(a, "POST", path, "["+strings.Join(items, ",")+"]", "Content-Type", "application/json")
		if n := strings.Count(w.Body.String(), `"code":"damaged"`); w.Code != 200 || n != 50 {
			t.Fatalf("%s: %d, %d items failed", path, w.Code, n)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "items=50") {
			t.Errorf("%s: %d lines of log: %.300s", path, n, log.String())
		}
	}
}
