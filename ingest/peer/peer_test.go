package peer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/forward"
)

func onePut() []cellog.Put {
	return []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: []byte("stored")}}
}

func TestPeerSaysWhetherCellsWereSent(t *testing.T) {
	answer := func(status int, media, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	whole := string(forward.AppendResults(nil, []forward.Result{{Stored: cellog.Stored{Outcome: cellog.Created, AddedID: 5}}}))
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		sent    bool
		failed  bool
	}{
		{"whole", answer(200, forward.MediaType, whole), true, false},
		{"for another worker", answer(421, "application/problem+json", "{}"), false, true},
		{"an older worker", answer(404, "application/problem+json", "{}"), false, true},
		{"failing", answer(500, "application/problem+json", "{}"), true, true},
		{"not a worker", answer(200, "text/html", "hello"), true, true},
		{"cut", answer(200, forward.MediaType, whole[:len(whole)-1]), true, true},
		{"no answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(c.handler)
			defer srv.Close()
			client := NewClient()
			defer client.Close()
			_, errs, sent, err := client.Peer("n", srv.URL).Write(context.Background(), "trips", onePut())
			if sent != c.sent || (err != nil) != c.failed || errors.Join(errs...) != nil {
				t.Errorf("sent %v, %v, %v", sent, errs, err)
			}
		})
	}
	t.Run("not there", func(t *testing.T) {
		srv := httptest.NewServer(nil)
		srv.Close()
		client := NewClient()
		defer client.Close()
		if _, _, sent, err := client.Peer("n", srv.URL).Write(context.Background(), "trips", onePut()); sent || err == nil {
			t.Errorf("sent %v, %v", sent, err)
		}
	})
}
