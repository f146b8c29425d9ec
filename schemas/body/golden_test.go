package body

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestGolden(t *testing.T) {
	file, err := os.ReadFile("testdata/stored.golden")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(file)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		n++
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		stored, json := unhex(parts[1]), []byte(parts[2])
		if parts[0] == "both" {
			if got, err := Encode(nil, json, Limits{}); err != nil || !bytes.Equal(got, stored) {
				t.Errorf("Encode(%s) = %x, %v, want %x", json, got, err, stored)
			}
		}
		if got, err := AppendJSON(nil, stored, 0); err != nil || !bytes.Equal(got, json) {
			t.Errorf("AppendJSON(%x) = %s, %v, want %s", stored, got, err, json)
		}
	}
	if n < 40 {
		t.Errorf("%d lines", n)
	}
}
