package httpapi

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
)

// drainBytes is how much more than its limit a client may send before its
// connection is closed.
const drainBytes = 64 << 20

// drainTimeout is how long it may take to send that.
const drainTimeout = 10 * time.Second

// drain reads what is left of a request's body, so that the client, who reads
// the answer only after it has sent all, gets it, and the connection lives on.
func (a *API) drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") != "" {
		return // the client waits for our word and has sent nothing
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(drainTimeout)) // not every writer has deadlines
	_, err := io.CopyN(io.Discard, r.Body, drainBytes)
	if errors.Is(err, io.EOF) {
		_ = rc.SetReadDeadline(time.Time{})
		return
	}
	giveUp(w) // an error here is the client's loss
}

// giveUp answers without reading any more of the request, and closes the
// connection. net/http reads up to 256 KiB of a body that its handler has left,
// before it sends the answer, and would wait for a client that sends a byte now
// and then for hours: the deadline that is over ends that.
func giveUp(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // not every writer has deadlines
}

// mediaType checks the Content-Type; none is taken as the first of the legal
// ones. A charset other than UTF-8 is refused.
func mediaType(r *http.Request, legal ...string) (string, error) {
	h := r.Header.Get("Content-Type")
	if h == "" {
		return legal[0], nil
	}
	t, params, err := mime.ParseMediaType(h)
	if err != nil {
		return "", fail("unsupported_media_type", "Content-Type is malformed: want "+strings.Join(legal, " or "))
	}
	if c := params["charset"]; c != "" && !strings.EqualFold(c, "utf-8") {
		return "", fail("unsupported_media_type", fmt.Sprintf("charset %.40q: JSON is UTF-8", c))
	}
	for _, l := range legal {
		if t == l {
			return t, nil
		}
	}
	return "", fail("unsupported_media_type", fmt.Sprintf("Content-Type %.80q: want %s", t, strings.Join(legal, " or ")))
}

// readBody reads a request's body, inflated, up to limit bytes. What it holds
// in memory counts against RequestBytes until release is called, which the
// caller must do.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, limit int, tooLarge string) (text []byte, release func(), err error) {
	var held int64
	release = func() { a.bytes.Add(-held) }
	defer func() {
		if err != nil {
			if ingest.CodeOf(err) == "body_timeout" {
				giveUp(w)
			} else {
				a.drain(w, r)
			}
			release()
		}
	}()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(a.cfg.BodyTimeout)) // not every writer has deadlines
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	var in io.Reader = r.Body
	size := r.ContentLength
	switch enc := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		if size > int64(limit) {
			return nil, release, fail(tooLarge, fmt.Sprintf("the body has %d bytes, at most %d are taken", size, limit))
		}
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, release, readError(err, true)
		}
		in, size = z, -1
	default:
		return nil, release, fail("unsupported_encoding", fmt.Sprintf("Content-Encoding %.40q: want gzip or none", enc))
	}
	hold := func(n int64) error {
		held += n
		if a.bytes.Add(n) > a.cfg.RequestBytes {
			return ingest.ErrOverloaded
		}
		return nil
	}
	if size < 0 {
		size = 4096
	}
	text = make([]byte, 0, size+1) // one more, to meet the end without growing
	if err := hold(size); err != nil {
		return nil, release, err
	}
	for {
		n, err := in.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if len(text) > limit {
			return nil, release, fail(tooLarge, fmt.Sprintf("the body has more than %d bytes", limit))
		}
		if errors.Is(err, io.EOF) {
			return text, release, nil
		}
		if err != nil {
			return nil, release, readError(err, in != r.Body)
		}
		if len(text) == cap(text) {
			more := min(cap(text), limit+1-len(text))
			if err := hold(int64(more)); err != nil {
				return nil, release, err
			}
			bigger := make([]byte, len(text), len(text)+more)
			copy(bigger, text)
			text = bigger
		}
	}
}

// readError says why a body could not be read.
func readError(err error, gzipped bool) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fail("body_timeout", "the body did not arrive in time")
	case gzipped:
		return fail("bad_encoding", "the body is not a whole gzip stream")
	}
	return fail("incomplete_body", "the body ended before its announced length")
}

// key reads row_key, column and ref_key from the path.
func key(v vars) (cellog.Key, error) {
	k, err := rowColumn(v)
	if err != nil {
		return k, err
	}
	if k.Ref, err = cellog.ParseRefKey(v["ref_key"]); err != nil {
		return k, fail("bad_ref_key", err.Error())
	}
	return k, nil
}

func rowColumn(v vars) (cellog.Key, error) {
	var k cellog.Key
	var err error
	if k.Row, err = cellog.ParseRowKey(v["row_key"]); err != nil {
		return k, fail("bad_row_key", err.Error())
	}
	if err := cellog.CheckColumn(v["column"]); err != nil {
		return k, fail("bad_column", err.Error())
	}
	k.Column = v["column"]
	return k, nil
}

// datastore reads the datastore from the path and returns its shards too.
func (a *API) datastore(v vars) (string, int, error) {
	ds := v["ds"]
	if err := cellog.CheckDatastore(ds); err != nil {
		return "", 0, fail("bad_datastore", err.Error())
	}
	n, err := a.cfg.Store.Shards(ds)
	return ds, n, err
}

func readFrom(q url.Values) (cellog.ReadFrom, error) {
	from, err := cellog.ParseReadFrom(q.Get("read"))
	if err != nil {
		return from, fail("bad_parameter", err.Error())
	}
	return from, nil
}

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// limit reads the limit parameter of a list.
func limit(q url.Values) (int, error) {
	s := q.Get("limit")
	if s == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxLimit {
		return 0, fail("bad_parameter", fmt.Sprintf("limit %.40q: want 1 to %d", s, maxLimit))
	}
	return n, nil
}

// traceParent reads the request's trace context, or nothing.
func traceParent(r *http.Request) (string, error) {
	t := r.Header.Get("Traceparent")
	if t != "" && !ingest.ValidTraceParent(t) {
		return "", ingest.ErrTraceParent
	}
	return t, nil
}

func (a *API) reading(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), a.cfg.ReadTimeout)
}
