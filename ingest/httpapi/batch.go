package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/cellog/cellog"
)

// batchItem is one item of a batch as it was written. Its raw values alias the
// request's text.
type batchItem struct {
	row, column, ref jsontext.Value
	body             jsontext.Value
	err              error // what is wrong with the item's own fields
}

// parseBatch reads a JSON array of items, or one item a line. Text that is not
// JSON refuses the whole batch, before anything is stored; what is wrong with
// one item is kept in it. Bodies are only cut out here: they may hold what only
// their own encoder refuses.
func parseBatch(text []byte, lines bool, max int) ([]batchItem, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	bad := func(n int, err error) error {
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return fail("bad_batch", fmt.Sprintf("the batch ends within item %d", n))
		}
		return fail("bad_batch", fmt.Sprintf("item %d, at or after byte %d: not JSON", n, dec.InputOffset()))
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fail("empty_body", "want a JSON array of items, or one item a line")
	}
	if !lines {
		if dec.PeekKind() != '[' {
			return nil, fail("bad_batch", "want a JSON array of items; one item a line has the content type application/x-ndjson")
		}
		if _, err := dec.ReadToken(); err != nil {
			return nil, bad(0, err)
		}
	}
	var items []batchItem
	for {
		kind := dec.PeekKind()
		if !lines && kind == ']' {
			break
		}
		if len(items) == max {
			if _, err := dec.ReadToken(); lines && err == io.EOF {
				return items, nil
			}
			return nil, fail("too_many_cells", fmt.Sprintf("the batch has more than %d cells", max))
		}
		if kind != '{' {
			_, err := dec.ReadValue()
			if lines && err == io.EOF {
				return items, nil
			}
			if err != nil {
				return nil, bad(len(items), err)
			}
			items = append(items, batchItem{err: fail("bad_item", "want an object with row_key, column, ref_key and body")})
			continue
		}
		it, err := parseItem(dec)
		if err != nil {
			return nil, bad(len(items), err)
		}
		items = append(items, it)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, bad(len(items), err)
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return nil, fail("bad_batch", "there is something after the array")
	}
	return items, nil
}

// parseItem reads one object. The error is set for broken JSON only.
func parseItem(dec *jsontext.Decoder) (batchItem, error) {
	var it batchItem
	if _, err := dec.ReadToken(); err != nil {
		return it, err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return it, err
		}
		field := name.String()
		v, err := dec.ReadValue()
		if err != nil {
			return it, err
		}
		var dst *jsontext.Value
		switch field {
		case "row_key":
			dst = &it.row
		case "column":
			dst = &it.column
		case "ref_key":
			dst = &it.ref
		case "body":
			dst = &it.body
		default:
			it.note(fail("bad_item", fmt.Sprintf("unknown field %.80q: want row_key, column, ref_key and body", field)))
			continue
		}
		if *dst != nil {
			it.note(fail("bad_item", "the field "+field+" is there twice"))
			continue
		}
		*dst = bytes.Clone(v)
	}
	_, err := dec.ReadToken()
	return it, err
}

func (it *batchItem) note(err error) {
	if it.err == nil {
		it.err = err
	}
}

// key reads the item's row_key and column.
func (it *batchItem) key() (cellog.Key, error) {
	if it.err != nil {
		return cellog.Key{}, it.err
	}
	row, err := text(it.row)
	if err != nil {
		return cellog.Key{}, fail("bad_row_key", "row_key: want a string")
	}
	column, err := text(it.column)
	if err != nil {
		return cellog.Key{}, fail("bad_column", "column: want a string")
	}
	return rowColumn(vars{"row_key": row, "column": column})
}

// refKey reads the item's ref_key, a number or, for clients whose numbers are
// floats, a string.
func (it *batchItem) refKey() (cellog.RefKey, error) {
	s := string(it.ref)
	if it.ref.Kind() == '"' {
		var err error
		if s, err = text(it.ref); err != nil {
			return 0, fail("bad_ref_key", "ref_key: want an integer")
		}
	}
	ref, err := cellog.ParseRefKey(s)
	if err != nil {
		return 0, fail("bad_ref_key", err.Error())
	}
	return ref, nil
}

func (it *batchItem) put() (cellog.Put, error) {
	k, err := it.key()
	if err != nil {
		return cellog.Put{}, err
	}
	if k.Ref, err = it.refKey(); err != nil {
		return cellog.Put{}, err
	}
	if it.body == nil {
		return cellog.Put{}, fail("bad_item", "body is missing")
	}
	return cellog.Put{Key: k, Body: it.body}, nil
}

func (it *batchItem) get() (cellog.Get, error) {
	k, err := it.key()
	if err != nil {
		return cellog.Get{}, err
	}
	if it.body != nil {
		return cellog.Get{}, fail("bad_item", "unknown field \"body\": want row_key, column and, for one version, ref_key")
	}
	if it.ref == nil {
		return cellog.Get{Key: k, Newest: true}, nil
	}
	k.Ref, err = it.refKey()
	return cellog.Get{Key: k}, err
}

func text(v jsontext.Value) (string, error) {
	if v.Kind() != '"' {
		return "", errors.New("not a string")
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err
}
