package acks

import (
	"context"
	"fmt"
	"os"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

// Store is what is asked for what stands.
type Store interface {
	// Standing returns, for each key, the body that stands in stored form, nil
	// where there is none.
	Standing(ctx context.Context, keys []cellog.Key) ([][]byte, error)
	// Buffered says whether a cell of the key waits for its primary.
	Buffered(ctx context.Context, key cellog.Key) (bool, error)
	// Rejected calls fn for the bodies, in stored form, that were rejected, and
	// the body that was named as the winner; nil if there was none.
	Rejected(ctx context.Context, fn func(key cellog.Key, stored, winner []byte)) error
}

// Report is the outcome of a Check.
type Report struct {
	// Answers is the number of lines, Keys of different keys.
	Answers int `json:"answers"`
	Keys    int `json:"keys"`
	// Acknowledged and Accepted are the keys that were answered 201 or 200, and
	// 202 but not those.
	Acknowledged int `json:"acknowledged"`
	Accepted     int `json:"accepted"`
	// Rejected are bodies answered 202 that lost, or were refused, as they may.
	Rejected int `json:"rejected"`
	// The faults; see the package's promises.
	Lost      int `json:"lost"`
	OtherBody int `json:"other_body"`
	TwoBodies int `json:"two_bodies"`
	Ghosts    int `json:"ghosts"`
	// Unnamed are rejected bodies whose record names another winner than the
	// body that stands.
	Unnamed int `json:"unnamed"`
	// Waiting are cells answered 202 that are not in yet.
	Waiting int `json:"waiting"`
}

// Clean reports whether every answer was true, and nothing waits.
func (r Report) Clean() bool { return r.Lost+r.OtherBody+r.TwoBodies+r.Ghosts+r.Unnamed+r.Waiting == 0 }

// said is what was answered to one body of a key.
type said struct {
	stored []byte
	acked  bool // 201 or 200
	taken  bool // 202
	no     bool // 429 or 503
	maybe  bool // an attempt whose outcome nobody knows: it may stand
}

// keysAtOnce bounds the keys of one question.
const keysAtOnce = 500

// Check holds a journal against a store. detail, if not nil, is told each fault.
// The error is set when it could not be compared.
func Check(ctx context.Context, file string, s Store, detail func(string)) (Report, error) {
	if detail == nil {
		detail = func(string) {}
	}
	var r Report
	keys, order, err := load(file, &r)
	if err != nil {
		return r, err
	}
	rejected := map[cellog.Key][]loser{}
	err = s.Rejected(ctx, func(k cellog.Key, stored, winner []byte) {
		if keys[k] != nil {
			rejected[k] = append(rejected[k], loser{stored, winner})
		}
	})
	if err != nil {
		return r, err
	}
	for len(order) > 0 {
		now := order[:min(len(order), keysAtOnce)]
		order = order[len(now):]
		standing, err := s.Standing(ctx, now)
		if err != nil {
			return r, err
		}
		for i, k := range now {
			c := check{r: &r, key: k, standing: standing[i], rejected: rejected[k], detail: detail}
			if err := c.run(ctx, s, keys[k]); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// load reads a journal, by key and body.
func load(file string, r *Report) (map[cellog.Key][]*said, []cellog.Key, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	keys := map[cellog.Key][]*said{}
	var order []cellog.Key
	err = read(f, func(a Answer) error {
		r.Answers++
		stored, err := body.Encode(nil, a.Body, body.Limits{Bytes: maxLine})
		if err != nil {
			return err
		}
		if keys[a.Key] == nil {
			order = append(order, a.Key)
		}
		var of *said
		for _, b := range keys[a.Key] {
			if same(b.stored, stored) {
				of = b
			}
		}
		if of == nil {
			of = &said{stored: stored}
			keys[a.Key] = append(keys[a.Key], of)
		}
		switch a.Status {
		case 200, 201:
			of.acked = true
		case 202:
			of.taken = true
		case 429, 503: // nothing was kept
			of.no = true
		default:
			of.maybe = of.maybe || a.Status == 0 || a.Status >= 500
		}
		return nil
	})
	r.Keys = len(order)
	return keys, order, err
}

func same(a, b []byte) bool {
	if a == nil || b == nil {
		return false
	}
	equal, err := body.Equal(a, b)
	return err == nil && equal
}

// loser is a rejected body, and which won.
type loser struct{ stored, winner []byte }

// check is the comparison of one key.
type check struct {
	r        *Report
	key      cellog.Key
	standing []byte
	rejected []loser
	detail   func(string)
}

func (c *check) fault(n *int, text string) {
	*n++
	c.detail(fmt.Sprintf("%s: %s", c.key, text))
}

func (c *check) run(ctx context.Context, s Store, bodies []*said) error {
	acked, taken := 0, 0
	for _, b := range bodies {
		stands := same(b.stored, c.standing)
		switch {
		case b.acked:
			acked++
			switch {
			case stands:
			case c.standing == nil:
				c.fault(&c.r.Lost, "it was answered 201 or 200, and no cell stands")
			default:
				c.fault(&c.r.OtherBody, "it was answered 201 or 200, and another body stands")
			}
		case b.taken:
			taken++
			if err := c.accepted(ctx, s, b, stands); err != nil {
				return err
			}
		case stands && !b.maybe:
			c.fault(&c.r.Ghosts, "every attempt was answered 429 or 503, or refused, and it stands")
		case b.no && !b.maybe && c.lost(b) != nil:
			c.fault(&c.r.Ghosts, "every attempt was answered 429 or 503, or refused, and it was rejected later")
		}
	}
	switch {
	case acked > 1:
		c.fault(&c.r.TwoBodies, "two bodies were answered 201 or 200")
		fallthrough
	case acked == 1:
		c.r.Acknowledged++
	case taken > 0:
		c.r.Accepted++
	}
	return nil
}

// lost returns the record of a body that was rejected, nil if it was not.
func (c *check) lost(b *said) *loser {
	for i := range c.rejected {
		if same(b.stored, c.rejected[i].stored) {
			return &c.rejected[i]
		}
	}
	return nil
}

// accepted looks what became of a body that was answered 202.
func (c *check) accepted(ctx context.Context, s Store, b *said, stands bool) error {
	if stands {
		return nil
	}
	if r := c.lost(b); r != nil {
		c.r.Rejected++
		if c.standing != nil && !same(c.standing, r.winner) {
			c.fault(&c.r.Unnamed, "it was answered 202 and rejected, and its record does not name the body that stands")
		}
		return nil
	}
	waits, err := s.Buffered(ctx, c.key)
	switch {
	case err != nil:
		return err
	case waits:
		c.fault(&c.r.Waiting, "it was answered 202 and waits for its primary")
	default:
		c.fault(&c.r.Lost, "it was answered 202, and neither stands, nor waits, nor was rejected")
	}
	return nil
}
