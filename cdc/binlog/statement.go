package binlog

import (
	"bytes"
	"fmt"
	"strings"
)

// loss is a statement that took the entity table of a database away, or rows
// out of it, past the row events.
type loss struct {
	what     string // such as TRUNCATE TABLE
	database string
}

func (l loss) err() error {
	return fmt.Errorf("a %s took away cells of %s.entity: put the table back as it was (see docs/tailing.md), then restart the tailer", l.what, l.database)
}

// losses returns what a statement did to entity tables. database is the one
// that a table without a database is in. Names are compared as they are
// written; ALTER counts only if it renames the table or throws rows away: another
// layout is found at the next row.
func losses(database string, text []byte) (out []loss) {
	w := &words{text: text}
	first := w.next()
	if first.is("SET") && w.next().is("STATEMENT") { // MariaDB: SET STATEMENT x = 1 FOR …
		for first = w.next(); !first.is("FOR") && first.text != ""; first = w.next() {
		}
		first = w.next()
	}
	what := strings.ToUpper(first.text)
	second := w.next()
	add := func(name, table word) {
		if table.text == "entity" {
			out = append(out, loss{what, name.text})
		}
	}
	switch {
	case first.is("DROP") && (second.is("DATABASE") || second.is("SCHEMA")):
		what += " DATABASE"
		name := w.skip(w.next(), "IF", "EXISTS")
		out = append(out, loss{what, name.text})
	case first.is("TRUNCATE"):
		what += " TABLE"
		db, table, _ := w.table(w.skip(second, "TABLE"), database)
		add(db, table)
	case first.is("DROP") && (second.is("TABLE") || second.is("TABLES")), first.is("RENAME") && (second.is("TABLE") || second.is("TABLES")):
		what += " TABLE"
		// Every name in the list counts: a table that becomes entity replaces
		// one that is gone.
		for next := w.skip(w.next(), "IF", "EXISTS"); next.text != ""; {
			var db, table word
			db, table, next = w.table(next, database)
			add(db, table)
			for next.text != "" && !next.is(",") && !next.is("TO") { // WAIT 5, RESTRICT
				next = w.next()
			}
			next = w.next()
		}
	case first.is("CREATE") && second.is("OR") && w.next().is("REPLACE"):
		if next := w.next(); next.is("TABLE") {
			what += " OR REPLACE TABLE"
			db, table, _ := w.table(w.skip(w.next(), "IF", "NOT", "EXISTS"), database)
			add(db, table)
		}
	case first.is("ALTER"):
		for second.is("ONLINE") || second.is("IGNORE") {
			second = w.next()
		}
		if !second.is("TABLE") {
			return nil
		}
		db, table, next := w.table(w.skip(w.next(), "IF", "EXISTS"), database)
		for ; next.text != ""; next = w.next() {
			takes := next.is("PARTITION") || next.is("TABLESPACE")
			if next.is("RENAME") {
				to := w.next()
				takes = !to.is("COLUMN") && !to.is("INDEX") && !to.is("KEY")
			}
			if takes {
				what += " TABLE"
				add(db, table)
				return out
			}
		}
	}
	return out
}

// word is a word, a quoted name or a sign; empty at the end.
type word struct {
	text   string
	quoted bool
}

func (w word) is(keyword string) bool { return !w.quoted && strings.EqualFold(w.text, keyword) }

// words takes a statement apart; comments and texts are passed over.
type words struct {
	text []byte
}

// table reads a name with or without a database, and returns what follows it.
func (w *words) table(first word, database string) (db, table, next word) {
	next = w.next()
	if !next.is(".") {
		return word{text: database}, first, next
	}
	table = w.next()
	return first, table, w.next()
}

// skip passes over keywords that may follow each other.
func (w *words) skip(next word, keywords ...string) word {
	for _, k := range keywords {
		if next.is(k) {
			next = w.next()
		}
	}
	return next
}

func (w *words) next() word {
	for len(w.text) > 0 {
		b := w.text
		c := b[0]
		switch {
		case c == ' ' || c >= '\t' && c <= '\r':
			w.text = b[1:]
		case bytes.HasPrefix(b, []byte("/*!")), bytes.HasPrefix(b, []byte("/*M!")):
			// A comment that the server runs: /*!80000 … */
			w.text = bytes.TrimLeft(b[bytes.IndexByte(b, '!')+1:], "0123456789")
		case bytes.HasPrefix(b, []byte("/*")):
			w.past(2, "*/")
		case bytes.HasPrefix(b, []byte("*/")):
			w.text = b[2:]
		case c == '#', bytes.HasPrefix(b, []byte("-- ")), bytes.HasPrefix(b, []byte("--\n")):
			w.past(1, "\n")
		case c == '\'':
			w.quote('\'')
		case c == '`', c == '"': // "…" is a name, or else a text where no name can be
			return word{text: w.quote(c), quoted: true}
		case letter(c):
			n := 1
			for n < len(b) && letter(b[n]) {
				n++
			}
			w.text = b[n:]
			return word{text: string(b[:n])}
		default:
			w.text = b[1:]
			return word{text: string(b[:1])}
		}
	}
	return word{}
}

func letter(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func (w *words) past(from int, end string) {
	if i := bytes.Index(w.text[from:], []byte(end)); i >= 0 {
		w.text = w.text[from+i+len(end):]
		return
	}
	w.text = nil
}

// quote passes over what stands between quotes, and returns it; a doubled quote
// stands for one.
func (w *words) quote(q byte) string {
	var out []byte
	b := w.text[1:]
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] == '\\' && q != '`' && i+1 < len(b):
			i++
			out = append(out, b[i])
		case b[i] == q && i+1 < len(b) && b[i+1] == q:
			i++
			out = append(out, q)
		case b[i] == q:
			w.text = b[i+1:]
			return string(out)
		default:
			out = append(out, b[i])
		}
	}
	w.text = nil
	return string(out)
}
