package cellog

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
)

// Token names a stored cell and its place in the log. A put answers one (the
// Cellog-Token header), and a reader of an index hands it back to wait until
// the index has seen that cell.
type Token struct {
	Key
	Datastore string
	Shard     ShardID
	Epoch     Epoch
	AddedID   AddedID
}

// ErrToken is returned by ParseToken.
var ErrToken = errors.New("not a token that a put answered")

// String returns the opaque text of a token, safe in URLs and headers.
func (t Token) String() string {
	b := make([]byte, 0, 160) // every put answers one: no fmt
	b = append(append(b, "1 "...), t.Datastore...)
	b = strconv.AppendInt(append(b, ' '), int64(t.Shard), 10)
	b = strconv.AppendInt(append(b, ' '), int64(t.Epoch), 10)
	b = strconv.AppendInt(append(b, ' '), int64(t.AddedID), 10)
	b = append(append(b, ' '), t.Key.String()...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseToken reads what Token.String writes, or returns ErrToken.
func ParseToken(s string) (Token, error) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) > 512 {
		return Token{}, ErrToken
	}
	parts := strings.Split(string(raw), " ")
	if len(parts) != 6 || parts[0] != "1" || CheckDatastore(parts[1]) != nil {
		return Token{}, ErrToken
	}
	shard, err1 := strconv.Atoi(parts[2])
	epoch, err2 := strconv.ParseInt(parts[3], 10, 32)
	id, err3 := strconv.ParseInt(parts[4], 10, 64)
	key, err4 := ParseKey(parts[5])
	if errors.Join(err1, err2, err3, err4) != nil || shard < 0 || shard >= MaxShards || epoch < 1 || id < 1 {
		return Token{}, ErrToken
	}
	return Token{Key: key, Datastore: parts[1], Shard: ShardID(shard), Epoch: Epoch(epoch), AddedID: AddedID(id)}, nil
}
