package acks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

type shop struct {
	stands   map[cellog.Key]string
	waits    map[cellog.Key]bool
	rejected map[cellog.Key]string
	winner   string
	err      error
}

func stored(text string) []byte {
	b, err := body.Encode(nil, []byte(text), body.Limits{})
	if err != nil {
		panic(err)
	}
	return b
}

func (s *shop) Standing(_ context.Context, keys []cellog.Key) ([][]byte, error) {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		if t := s.stands[k]; t != "" {
			out[i] = stored(t)
		}
	}
	return out, s.err
}

func (s *shop) Buffered(_ context.Context, k cellog.Key) (bool, error) { return s.waits[k], s.err }

func (s *shop) Rejected(_ context.Context, fn func(cellog.Key, []byte, []byte)) error {
	for k, t := range s.rejected {
		fn(k, stored(t), stored(s.winner))
	}
	return s.err
}

// Each fault is planted by itself and found under its own name; what is no
// fault is found clean.
func TestPlantedFaults(t *testing.T) {
	type answer struct {
		status int
		body   string
	}
	for _, c := range []struct {
		name     string
		answers  []answer
		stands   string
		waits    bool
		rejected string
		want     Report
		winner   string // default 2
	}{
		{"stored", []answer{{201, `{"a":1,"b":2}`}, {200, `{"b":2,"a":1.0}`}}, `{"a":1,"b":2}`, false, "", Report{Acknowledged: 1}, ""},
		{"lost", []answer{{201, `1`}}, "", false, "", Report{Acknowledged: 1, Lost: 1}, ""},
		{"another body", []answer{{200, `1`}}, `2`, false, "", Report{Acknowledged: 1, OtherBody: 1}, ""},
		{"two bodies", []answer{{201, `1`}, {201, `2`}}, `1`, false, "", Report{Acknowledged: 1, OtherBody: 1, TwoBodies: 1}, ""},
		{"a conflict told", []answer{{201, `1`}, {409, `2`}}, `1`, false, "", Report{Acknowledged: 1}, ""},
		{"a conflict that stands", []answer{{409, `1`}}, `1`, false, "", Report{Ghosts: 1}, ""},
		{"refused and stored", []answer{{503, `1`}, {429, `1`}}, `1`, false, "", Report{Ghosts: 1}, ""},
		{"refused and not stored", []answer{{503, `1`}}, "", false, "", Report{}, ""},
		{"refused, then unknown", []answer{{503, `1`}, {504, `1`}}, `1`, false, "", Report{}, ""},
		{"no answer, stored", []answer{{0, `1`}}, `1`, false, "", Report{}, ""},
		{"no answer, not stored", []answer{{0, `1`}}, "", false, "", Report{}, ""},
		{"accepted, in", []answer{{202, `1`}}, `1`, false, "", Report{Accepted: 1}, ""},
		{"accepted, waits", []answer{{202, `1`}}, "", true, "", Report{Accepted: 1, Waiting: 1}, ""},
		{"accepted, lost to another", []answer{{202, `1`}, {201, `2`}}, `2`, false, `1`, Report{Acknowledged: 1, Rejected: 1}, ""},
		{"accepted, lost to one that is not named", []answer{{202, `1`}, {201, `2`}}, `2`, false, `1`, Report{Acknowledged: 1, Rejected: 1, Unnamed: 1}, `3`},
		{"refused, and rejected later", []answer{{503, `1`}, {201, `2`}}, `2`, false, `1`, Report{Acknowledged: 1, Ghosts: 1}, ""},
		{"accepted, another's rejection", []answer{{202, `1`}}, `2`, false, `3`, Report{Accepted: 1, Lost: 1}, ""},
		{"accepted, gone", []answer{{202, `1`}}, "", false, "", Report{Accepted: 1, Lost: 1}, ""},
		{"accepted, then stored", []answer{{202, `1`}, {201, `1`}}, `1`, false, "", Report{Acknowledged: 1}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: -5}
			file := filepath.Join(t.TempDir(), "acks")
			j, err := Create(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range c.answers {
				if err := j.Append(Answer{a.status, k, []byte(a.body)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			s := &shop{stands: map[cellog.Key]string{k: c.stands}, waits: map[cellog.Key]bool{k: c.waits}, winner: cmp.Or(c.winner, `2`)}
			if c.rejected != "" {
				s.rejected = map[cellog.Key]string{k: c.rejected, {Column: "OTHER"}: `1`}
			}
			var details []string
			got, err := Check(t.Context(), file, s, func(d string) { details = append(details, d) })
			c.want.Answers, c.want.Keys = len(c.answers), 1
			if err != nil || got != c.want {
				t.Errorf("%+v %v, want %+v", got, err, c.want)
			}
			faults := got.Lost + got.OtherBody + got.TwoBodies + got.Ghosts + got.Unnamed + got.Waiting
			if (faults == 0) != got.Clean() || len(details) != faults {
				t.Errorf("clean %v, details %q", got.Clean(), details)
			}
		})
	}
}

// Many writers share the journal, a later run goes on behind them, and half a
// line at the end, of a process that was killed, is nothing.
func TestJournal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "acks")
	const writers, each = 8, 50
	s := &shop{stands: map[cellog.Key]string{}}
	var mu sync.Mutex
	for range 2 {
		j, err := Create(file)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for i := range each {
					k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: cellog.RefKey(i)}
					mu.Lock()
					s.stands[k] = fmt.Sprint(i)
					mu.Unlock()
					if err := j.Append(Answer{201, k, fmt.Append(nil, i)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if err := j.Append(Answer{201, cellog.Key{}, []byte(`1`)}); err == nil {
			t.Error("a closed journal takes answers")
		}
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"status":201,"row_key":"0c2f6a4e`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if r, err := Check(t.Context(), file, s, nil); err != nil || !r.Clean() || r.Acknowledged != 2*writers*each || r.Answers != r.Keys {
		t.Errorf("%+v %v", r, err)
	}

	s.err = errors.New("away")
	if _, err := Check(t.Context(), file, s, nil); !errors.Is(err, s.err) {
		t.Errorf("a store that does not answer: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{\"status\":201}\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(t.Context(), bad, &shop{}, nil); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a bad line: %v", err)
	}
	if _, err := Check(t.Context(), bad+"2", &shop{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
