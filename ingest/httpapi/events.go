package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
)

const (
	// eventPage bounds the cells that are read of a shard at a time.
	eventPage = 100
	// eventPoll is how often the final marks are looked at, in memory.
	eventPoll = 10 * time.Millisecond
	// keepAlive is how often a quiet stream gets a comment, so that proxies
	// leave it open and a vanished client is noticed.
	keepAlive = 15 * time.Second
	// eventWrite bounds one write to a client of a stream.
	eventWrite = 30 * time.Second
)

// stream is one reader's place in the logs of its shards.
type stream struct {
	a      *API
	ds     string
	column string
	shards []cellog.ShardID
	after  map[cellog.ShardID]cellog.AddedID
}

// getEvents sends the final cells of a column as they come: as server-sent
// events, or as one list as soon as there is something (long poll). Order holds
// within a shard.
func (a *API) getEvents(w http.ResponseWriter, r *http.Request, v vars) error {
	ds, shards, err := a.datastore(v)
	if err != nil {
		return err
	}
	if err := cellog.CheckColumn(v["column"]); err != nil {
		return fail("bad_column", err.Error())
	}
	q := r.URL.Query()
	n, err := limit(q)
	if err != nil {
		return err
	}
	s := &stream{a: a, ds: ds, column: v["column"], after: map[cellog.ShardID]cellog.AddedID{}}
	if s.shards, err = shardSet(q.Get("shards"), shards); err != nil {
		return err
	}
	since := q.Get("since")
	if id := r.Header.Get("Last-Event-Id"); id != "" {
		since = id
	}
	if err := s.start(since); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.stop, cancel)()
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return s.serve(ctx, w)
	}
	return s.poll(ctx, w, n)
}

// shardSet reads a set of shards such as 0-3,7; empty means all.
func shardSet(text string, shards int) ([]cellog.ShardID, error) {
	in := map[int]bool{}
	if text == "" {
		text = fmt.Sprintf("0-%d", shards-1)
	}
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		l, err1 := strconv.Atoi(lo)
		h, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || l < 0 || h < l || h >= shards {
			return nil, fail("bad_parameter", fmt.Sprintf("shards %.80q: want numbers and ranges of 0 to %d, such as 0-3,7", text, shards-1))
		}
		for ; l <= h; l++ {
			in[l] = true
		}
	}
	out := make([]cellog.ShardID, 0, len(in))
	for n := range in {
		out = append(out, cellog.ShardID(n))
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out, nil
}

// start sets the place: zero, latest (also when empty), or a cursor.
func (s *stream) start(since string) error {
	switch since {
	case "zero":
		return nil
	case "", "latest":
		for _, sh := range s.shards {
			mark, ok := s.a.final(s.ds, sh)
			if !ok {
				return fail("final_unknown", "this worker has not read the positions yet")
			}
			s.after[sh] = mark
		}
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(since)
	if err != nil || len(raw) == 0 || raw[0] != 1 {
		return errCursor
	}
	asked := map[cellog.ShardID]bool{}
	for _, sh := range s.shards {
		asked[sh] = true
	}
	for raw = raw[1:]; len(raw) > 0; {
		sh, n := binary.Uvarint(raw)
		if n <= 0 {
			return errCursor
		}
		id, m := binary.Uvarint(raw[n:])
		if m <= 0 || id > 1<<62 {
			return errCursor
		}
		raw = raw[n+m:]
		if asked[cellog.ShardID(sh)] {
			s.after[cellog.ShardID(sh)] = cellog.AddedID(id)
		}
	}
	return nil
}

// cursor is the stream's place as opaque text: pairs of shard and added_id.
func (s *stream) cursor() string {
	raw := []byte{1}
	for _, sh := range s.shards {
		if id := s.after[sh]; id > 0 {
			raw = binary.AppendUvarint(raw, uint64(sh))
			raw = binary.AppendUvarint(raw, uint64(id))
		}
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// next reads what is final and new, shard after shard, and calls f for each
// cell when the place includes it.
func (s *stream) next(ctx context.Context, limit int, f func(c *cellog.Cell, o cellog.Origin) error) (n int, err error) {
	for _, sh := range s.shards {
		mark, ok := s.a.final(s.ds, sh)
		if !ok || mark <= s.after[sh] || n >= limit {
			continue
		}
		rctx, cancel := context.WithTimeout(ctx, s.a.cfg.ReadTimeout)
		after := s.after[sh]
		cells, more, o, err := s.a.cfg.Store.Log(rctx, s.ds, sh, after, mark, s.column, min(eventPage, limit-n), cellog.Master)
		if err == nil {
			err = s.a.cfg.Store.Sequences(rctx, s.ds, sh, after, cells, cellog.Master)
		}
		cancel()
		if err != nil {
			return n, err
		}
		for i := range cells {
			s.after[sh] = cells[i].AddedID
			n++
			if err := f(&cells[i], o); err != nil {
				return n, err
			}
		}
		if !more {
			s.after[sh] = mark
		}
	}
	return n, nil
}

// poll answers one list, after PollWait an empty one.
func (s *stream) poll(ctx context.Context, w http.ResponseWriter, limit int) error {
	ctx, cancel := context.WithTimeout(ctx, s.a.cfg.PollWait)
	defer cancel()
	var cells []cellog.Cell
	var from cellog.Origin
	t := time.NewTicker(eventPoll)
	defer t.Stop()
	for len(cells) == 0 {
		_, err := s.next(ctx, limit, func(c *cellog.Cell, o cellog.Origin) error {
			cells, from = append(cells, *c), o
			return nil
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
		if len(cells) > 0 || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	return writeCells(w, cells, from, s.cursor(), "")
}

// serve sends server-sent events until the client goes or the API is closed.
func (s *stream) serve(ctx context.Context, w http.ResponseWriter) error {
	rc := http.NewResponseController(w)
	// The stream has no end, but each write has: who does not read is let go.
	patience := func() { _ = rc.SetWriteDeadline(time.Now().Add(eventWrite)) } // not every writer has deadlines
	patience()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write([]byte(": here\n\n")); err != nil { // some clients wait for a first byte
		return nil
	}
	if err := rc.Flush(); err != nil {
		return nil // the client has gone
	}
	t := time.NewTicker(eventPoll)
	defer t.Stop()
	last := time.Now()
	for {
		n, err := s.next(ctx, eventPage*len(s.shards), func(c *cellog.Cell, o cellog.Origin) error {
			patience()
			text, err := appendCell([]byte("id: "+s.cursor()+"\nevent: cell\ndata: "), c, o, "")
			if err != nil {
				return err
			}
			_, err = w.Write(append(text, "\n\n"...))
			return err
		})
		if err != nil {
			return nil // the client reconnects with the last id it got
		}
		if n == 0 && time.Since(last) > keepAlive {
			patience()
			if _, err := w.Write([]byte(": still here\n\n")); err != nil {
				return nil
			}
			n = 1
		}
		if n > 0 {
			last = time.Now()
			if err := rc.Flush(); err != nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
