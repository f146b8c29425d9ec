package chaos

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// failures are the puts that failed since a moment, by why they did.
type failures struct {
	since time.Time
	kinds []failure
	more  int // of kinds that there was no room for
}

// maxFailures bounds the kinds of failures that are kept.
const maxFailures = 12

type failure struct {
	status      int
	why         string // without what differs from put to put
	cluster     int
	count       int
	first, last time.Duration // when the first put began, and when the last was answered
	longest     time.Duration // that one took
}

// what differs from put to put in an answer that says why it failed.
var particular = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9]+\b`)

func (f *failures) note(status int, why string, cluster int, began, ended time.Time) {
	var problem struct{ Code, Detail string }
	if status != 0 && json.Unmarshal([]byte(why), &problem) == nil && problem.Code != "" {
		why = problem.Code + ": " + problem.Detail
	}
	why = particular.ReplaceAllString(why, "N")
	var k *failure
	for i := range f.kinds {
		if x := &f.kinds[i]; x.status == status && x.why == why && x.cluster == cluster {
			k = x
		}
	}
	if k == nil {
		if len(f.kinds) == maxFailures {
			f.more++
			return
		}
		f.kinds = append(f.kinds, failure{status: status, why: why, cluster: cluster, first: began.Sub(f.since)})
		k = &f.kinds[len(f.kinds)-1]
	}
	k.count++
	k.last, k.longest = ended.Sub(f.since), max(k.longest, ended.Sub(began))
}

// String has a line for each kind.
func (f failures) String() string {
	var sb strings.Builder
	for _, k := range f.kinds {
		fmt.Fprintf(&sb, "\n  %d x %d of cluster c%d from %.2f s to %.2f s, up to %.2f s each: %.600s", k.count, k.status, k.cluster+1, k.first.Seconds(), k.last.Seconds(), k.longest.Seconds(), k.why)
	}
	if f.more > 0 {
		fmt.Fprintf(&sb, "\n  and %d of other kinds", f.more)
	}
	return sb.String()
}
