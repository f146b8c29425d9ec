package record

import (
	"fmt"

	"github.com/cellog/cellog/schemas/body"
)

// Form is what the value of a record is. Its content-type says so in each
// record, so that a column's form may change in the middle of a topic.
type Form string

const (
	// JSON is the body's JSON text, content-type application/json. The empty
	// Form means it too.
	JSON Form = "json"
	// MessagePack is the body's MessagePack as schemas/body has it, inflated,
	// content-type application/msgpack.
	MessagePack Form = "msgpack"
	// Stored is the body as the database holds it: format, checksum and
	// payload of schemas/body, content-type application/vnd.cellog.body.
	Stored Form = "stored"
)

// ContentType is the content-type of JSON; see Form for the others.
const ContentType = "application/json"

var contentTypes = map[Form][]byte{
	"": []byte(ContentType), JSON: []byte(ContentType),
	MessagePack: []byte("application/msgpack"), Stored: []byte("application/vnd.cellog.body"),
}

// OtherColumns is the key in Forms of all columns that it does not name.
const OtherColumns = "*"

// Forms are the forms of a datastore's columns, by column or OtherColumns. Nil
// means JSON for all.
type Forms map[string]Form

// Of returns a column's form.
func (f Forms) Of(column string) Form {
	if form, ok := f[column]; ok {
		return form
	}
	return f[OtherColumns]
}

// AppendValue appends the value that a stored body has in a form to dst, and
// returns which form it took: what would be longer than body.MaxBytes in
// another form goes as JSON, which never is. All forms check the format and the
// checksum; only JSON and MessagePack check what is inside. The error is a
// *body.Error, and then dst is returned as it was.
func AppendValue(dst, stored []byte, form Form) ([]byte, Form, error) {
	switch form {
	case Stored:
		if len(stored) <= body.MaxBytes {
			if err := body.Check(stored); err != nil {
				return dst, form, err
			}
			return append(dst, stored...), form, nil
		}
	case MessagePack:
		out, err := body.AppendMessagePack(dst, stored, body.MaxBytes)
		if err == nil || body.CodeOf(err) != body.CodeTooLarge {
			return out, form, err
		}
	}
	out, err := body.AppendJSON(dst, stored, 0)
	return out, JSON, err
}

// ValueJSON returns the JSON text that a value of a content-type stands for:
// of JSON the value itself, unread; of the others new memory. The error says
// that the content-type is unknown, or has a *body.Error in its chain.
func ValueJSON(contentType string, value []byte) ([]byte, error) {
	var out []byte
	var err error
	switch contentType {
	case ContentType:
		return value, nil
	case string(contentTypes[MessagePack]):
		out, err = body.AppendMessagePackJSON(make([]byte, 0, len(value)+len(value)/2+64), value, 0)
	case string(contentTypes[Stored]):
		out, err = body.AppendJSON(make([]byte, 0, 2*len(value)+256), value, 0)
	default:
		return nil, fmt.Errorf("content-type is %.60q, want %s, %s or %s", contentType, ContentType, contentTypes[MessagePack], contentTypes[Stored])
	}
	if err != nil {
		return nil, fmt.Errorf("the value is no %s: %w", contentType, err)
	}
	return out, nil
}
