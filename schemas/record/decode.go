package record

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
)

// headerNames is the order in which Encode writes; traceparent, the last one,
// may be missing.
var headerNames = [MaxHeaders]string{
	HeaderContentType, HeaderSpecVersion, HeaderID, HeaderSource, HeaderType,
	HeaderSubject, HeaderTime, HeaderSequence, HeaderEpoch, HeaderTraceParent,
}

// Decode reads a record back, whatever its form. Body is the JSON text: of that
// form r.Value itself, of others new memory, at most body.MaxBytes. CreatedAt comes from
// ce_time, to the microsecond. r.Time is not looked at, because a topic may
// stamp records by itself. The error names the header and the value that was
// expected, and has ErrNotACell in its chain; the body is never in it.
func Decode(r Record) (cellog.Cell, error) {
	var values [MaxHeaders][]byte
	var found [MaxHeaders]bool
	for _, h := range r.Headers {
		for i, name := range headerNames {
			if name != h.Key {
				continue
			}
			if found[i] {
				return cellog.Cell{}, notACell("header %s is there twice", name)
			}
			found[i], values[i] = true, h.Value
			break
		}
	}
	for i, name := range headerNames[:MaxHeaders-1] {
		if !found[i] {
			return cellog.Cell{}, notACell("header %s is missing", name)
		}
	}
	var c cellog.Cell
	switch {
	case string(values[1]) != SpecVersion:
		return c, notACell("ce_specversion is %.20q, want %s", values[1], SpecVersion)
	case string(values[4]) != Type:
		return c, notACell("ce_type is %.60q, want %s", values[4], Type)
	case len(r.Value) == 0:
		return c, notACell("the value is empty; a cell has a body")
	}
	id, source, subject, at := string(values[2]), values[3], string(values[5]), string(values[6])
	var err error
	if c.Datastore, c.Shard, c.AddedID, err = parseID(id); err != nil {
		return cellog.Cell{}, err
	}
	if rest, ok := bytes.CutPrefix(source, []byte(sourcePrefix)); !ok || string(rest) != c.Datastore {
		return cellog.Cell{}, notACell("ce_source is %.80q, but ce_id wants %s%s", source, sourcePrefix, c.Datastore)
	}
	if c.Key, err = cellog.ParseKey(subject); err != nil {
		return cellog.Cell{}, notACell("ce_subject: %v", err)
	}
	row, _, _ := strings.Cut(subject, "/")
	if row != string(r.Key) {
		return cellog.Cell{}, notACell("the key is %.80q, but ce_subject has the row %s", r.Key, row)
	}
	var buf [48]byte
	if row != string(appendUUID(buf[:0], c.Row)) {
		return cellog.Cell{}, notACell("the key is %s, want it in lower case", row)
	}
	if c.CreatedAt, err = time.Parse(timeLayout, at); err != nil || string(c.CreatedAt.AppendFormat(buf[:0], timeLayout)) != at {
		return cellog.Cell{}, notACell("ce_time is %.60q, want the form %s", at, timeLayout)
	}
	sequence, err := parsePositive(HeaderSequence, string(values[7]), math.MaxInt64)
	if err != nil {
		return cellog.Cell{}, err
	}
	epoch, err := parsePositive(HeaderEpoch, string(values[8]), math.MaxInt32)
	if err != nil {
		return cellog.Cell{}, err
	}
	c.Sequence, c.Epoch = cellog.Sequence(sequence), cellog.Epoch(epoch)
	c.TraceParent = string(values[9])
	if c.Body, err = ValueJSON(string(values[0]), r.Value); err != nil {
		return cellog.Cell{}, notACell("%w", err)
	}
	return c, nil
}

func parseID(id string) (string, cellog.ShardID, cellog.AddedID, error) {
	datastore, rest, _ := strings.Cut(id, "/")
	shardText, addedText, ok := strings.Cut(rest, "/")
	if !ok {
		return "", 0, 0, notACell("ce_id is %.80q, want <datastore>/<shard>/<added_id>", id)
	}
	if err := cellog.CheckDatastore(datastore); err != nil {
		return "", 0, 0, notACell("ce_id: %v", err)
	}
	shard, err := strconv.Atoi(shardText)
	if err != nil || shard < 0 || shard >= cellog.MaxShards || strconv.Itoa(shard) != shardText {
		return "", 0, 0, notACell("ce_id has the shard %.40q, want a number from 0 to %d", shardText, cellog.MaxShards-1)
	}
	added, err := parsePositive("the added_id of ce_id", addedText, math.MaxInt64)
	if err != nil {
		return "", 0, 0, err
	}
	return datastore, cellog.ShardID(shard), cellog.AddedID(added), nil
}

// parsePositive reads a whole number from 1 to max in its shortest form.
func parsePositive(what, text string, max int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > max || strconv.FormatInt(n, 10) != text {
		return 0, notACell("%s is %.40q, want a number from 1 to %d", what, text, max)
	}
	return n, nil
}
