package httpapi

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// place says where a cell is. The answers to puts and the problem documents of
// conflicts carry it.
type place struct {
	Outcome   string         `json:"outcome,omitempty"`
	Shard     cellog.ShardID `json:"shard"`
	AddedID   cellog.AddedID `json:"added_id"`
	Epoch     cellog.Epoch   `json:"epoch"`
	CreatedAt time.Time      `json:"created_at"`
	Token     string         `json:"token"`
}

func placeOf(datastore string, k cellog.Key, s cellog.Stored) *place {
	t := cellog.Token{Key: k, Datastore: datastore, Shard: s.Shard, Epoch: s.Epoch, AddedID: s.AddedID}
	return &place{s.Outcome.String(), s.Shard, s.AddedID, s.Epoch, s.CreatedAt.UTC(), t.String()}
}

// appendJSON appends what encoding/json makes of a place; every put answers
// one, and none of its texts needs escaping.
func (p *place) appendJSON(dst []byte) []byte {
	dst = append(append(dst, `{"outcome":"`...), p.Outcome...)
	dst = strconv.AppendInt(append(dst, `","shard":`...), int64(p.Shard), 10)
	dst = strconv.AppendInt(append(dst, `,"added_id":`...), int64(p.AddedID), 10)
	dst = strconv.AppendInt(append(dst, `,"epoch":`...), int64(p.Epoch), 10)
	dst = p.CreatedAt.AppendFormat(append(dst, `,"created_at":"`...), time.RFC3339Nano)
	dst = append(append(dst, `","token":"`...), p.Token...)
	return append(dst, `"}`...)
}

// outcomeStatus maps the outcome of a put to its status.
func outcomeStatus(o cellog.Outcome) int {
	switch o {
	case cellog.Created:
		return http.StatusCreated
	case cellog.Same:
		return http.StatusOK
	case cellog.Buffered:
		return http.StatusAccepted
	default:
		return http.StatusConflict
	}
}

const timeFormat = "2006-01-02T15:04:05.000000Z"

// setPlace writes the Cellog-* headers of a cell.
func setPlace(h http.Header, shard cellog.ShardID, id cellog.AddedID, epoch cellog.Epoch, ref cellog.RefKey, at time.Time) {
	h["Cellog-Shard"] = []string{strconv.Itoa(int(shard))}
	h["Cellog-Added-Id"] = []string{strconv.FormatInt(int64(id), 10)}
	h["Cellog-Epoch"] = []string{strconv.Itoa(int(epoch))}
	h["Cellog-Ref-Key"] = []string{strconv.FormatInt(int64(ref), 10)}
	h["Cellog-Created-At"] = []string{at.UTC().Format(timeFormat)}
}

func setOrigin(h http.Header, o cellog.Origin) {
	h["Cellog-Read-From"] = []string{o.From.String()}
	h["Cellog-Stale"] = []string{strconv.FormatBool(o.Stale)}
	if o.From == cellog.Minion && o.Lag != cellog.UnknownLag {
		h["Cellog-Lag-Ms"] = []string{strconv.FormatInt(o.Lag.Milliseconds(), 10)}
	}
}

// cellJSON is a cell in a list.
type cellJSON struct {
	RowKey      uuid.UUID       `json:"row_key"`
	Column      string          `json:"column"`
	RefKey      cellog.RefKey   `json:"ref_key"`
	Shard       cellog.ShardID  `json:"shard"`
	AddedID     cellog.AddedID  `json:"added_id"`
	Epoch       cellog.Epoch    `json:"epoch"`
	Sequence    cellog.Sequence `json:"sequence,omitempty"`
	CreatedAt   string          `json:"created_at"`
	TraceParent string          `json:"traceparent,omitempty"`
	ReadFrom    string          `json:"read_from"`
	Stale       bool            `json:"stale"`
}

// appendCell writes a cell of a list. The body is spliced in as it is: going
// through encoding/json would read it again, and escape it anew.
func appendCell(dst []byte, c *cellog.Cell, o cellog.Origin, extra string) ([]byte, error) {
	meta, err := json.Marshal(cellJSON{c.Row, c.Column, c.Ref, c.Shard, c.AddedID, c.Epoch, c.Sequence,
		c.CreatedAt.UTC().Format(timeFormat), c.TraceParent, o.From.String(), o.Stale})
	if err != nil {
		return dst, err
	}
	dst = append(dst, '{')
	dst = append(dst, extra...)
	dst = append(dst, meta[1:len(meta)-1]...)
	dst = append(dst, `,"body":`...)
	if dst, err = body.AppendJSON(dst, c.Body, 0); err != nil {
		return dst, err
	}
	return append(dst, '}'), nil
}

// writeCells answers a list. extra are further members of the answer's object,
// each with a comma before.
func writeCells(w http.ResponseWriter, cells []cellog.Cell, o cellog.Origin, next, extra string) error {
	out := []byte(`{"cells":[`)
	var err error
	for i := range cells {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendCell(out, &cells[i], o, ""); err != nil {
			return err
		}
	}
	out = append(out, `],"next":`...)
	if next == "" {
		out = append(out, "null"...)
	} else {
		out = strconv.AppendQuoteToASCII(out, next) // cursors are URL-safe ASCII
	}
	out = append(out, extra...)
	out = append(out, "}\n"...)
	setOrigin(w.Header(), o)
	writeJSON(w, http.StatusOK, out)
	return nil
}

func writeJSON(w http.ResponseWriter, status int, text []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may have gone; nobody is left to tell
}

func writeValue(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeJSON(w, status, append(text, '\n'))
	return nil
}

// etag is the entity tag of a body: the hash of its canonical form.
func etag(json []byte) string {
	sum := body.HashJSON(json)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}
