package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog/internal/mysqltest"
)

// The server is killed three times under load. Every acknowledged cell is
// there, where the answer said; of those that were answered "nothing was kept"
// nothing is; those of unknown outcome can be put again; the logs are dense.
func TestServerKilledUnderLoad(t *testing.T) {
	const shards, clients = 4, 32
	node := mysqltest.Start(t)
	w := newWorker(t, shards, nil, node)
	type said struct {
		path, body string
		status     int
		code       string
		id         string
	}
	var mu sync.Mutex
	var answers []said
	var stop atomic.Bool
	var wg sync.WaitGroup
	count := func(status int) int {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, a := range answers {
			if a.status == status {
				n++
			}
		}
		return n
	}
	for c := range clients {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				path := fmt.Sprintf("/v1/%s/cells/%s/BASE/1", w.ds, uuid.New())
				body := fmt.Sprintf(`{"client":%d,"i":%d}`, c, i)
				a := w.do(http.MethodPut, path, []byte(body))
				mu.Lock()
				answers = append(answers, said{path, body, a.status, a.code(), a.header.Get("Cellog-Added-Id")})
				mu.Unlock()
			}
		})
	}
	for range 3 {
		before := count(201)
		waitFor(t, 2*time.Minute, func() error {
			if n := count(201); n < before+200 {
				return fmt.Errorf("%d cells stored, want %d", n, before+200)
			}
			return nil
		})
		node.Kill()
		node.Restart(t)
		node.Exec(t, "SET GLOBAL read_only = OFF")
	}
	before := count(201)
	waitFor(t, 2*time.Minute, func() error {
		if count(201) < before+100 {
			return fmt.Errorf("%d cells stored since the last kill", count(201)-before)
		}
		return nil
	})
	stop.Store(true)
	wg.Wait()
	statuses := map[string]int{}
	for _, s := range answers {
		statuses[fmt.Sprintf("%d %s", s.status, s.code)]++
		a := w.do(http.MethodGet, s.path, nil)
		switch s.status {
		case 201, 200:
			if a.status != 200 || string(a.body) != s.body || a.header.Get("Cellog-Added-Id") != s.id {
				t.Errorf("%s was answered %d at %s: %d %s at %s", s.path, s.status, s.id, a.status, a.body, a.header.Get("Cellog-Added-Id"))
			}
		case 429, 503:
			if a.status != 404 {
				t.Errorf("%s was answered %d %s, nothing kept: %d %s", s.path, s.status, s.code, a.status, a.body)
			}
		case 504:
			if again := w.do(http.MethodPut, s.path, []byte(s.body)); again.status != 201 && again.status != 200 {
				t.Errorf("%s of unknown outcome, put again: %d %s", s.path, again.status, again.body)
			}
		default:
			t.Errorf("%s: %d %s", s.path, s.status, s.code)
		}
	}
	t.Log(statuses)
	for s := range shards {
		after, rows := 0, 0
		for {
			a := w.do(http.MethodGet, fmt.Sprintf("/v1/%s/log/%d?provisional=1&limit=1000&after=%d", w.ds, s, after), nil)
			var page struct {
				Cells []struct {
					AddedID int `json:"added_id"`
				}
				Next *string
				UpTo int `json:"up_to"`
			}
			must(t, json.Unmarshal(a.body, &page))
			for _, c := range page.Cells {
				if rows++; c.AddedID != rows {
					t.Fatalf("shard %d: added_id %d is at place %d", s, c.AddedID, rows)
				}
				after = c.AddedID
			}
			if page.Next == nil {
				if page.UpTo != rows {
					t.Errorf("shard %d: %d rows, shard_log says %d", s, rows, page.UpTo)
				}
				break
			}
		}
	}
}

// waitFor polls until f has no error.
func waitFor(tb testing.TB, max time.Duration, f func() error) {
	tb.Helper()
	deadline := time.Now().Add(max)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %v", max, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
