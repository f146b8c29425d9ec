package httpapi

import (
	"crypto/subtle"
	"net/http"

	"github.com/cellog/cellog/schemas/forward"
)

// takeForwarded stores cells for another worker, which has
// checked them.
func (a *API) takeForwarded(w http.ResponseWriter, r *http.Request, v vars) error {
	check := func() (ds string, err error) {
		name := r.Header.Get(forward.WorkerHeader)
		if a.cfg.Worker == "" || subtle.ConstantTimeCompare([]byte(name), []byte(a.cfg.Worker)) != 1 {
			return "", fail("misdirected", "only workers forward cells, and these are for another one")
		}
		if ds, _, err = a.datastore(v); err != nil {
			return "", err
		}
		_, err = mediaType(r, forward.MediaType)
		return ds, err
	}
	ds, err := check()
	if err != nil {
		a.drain(w, r)
		return err
	}
	// A body in stored form may be half as long again as its JSON.
	text, release, err := a.readBody(w, r, a.cfg.BatchBytes+2*a.cfg.Limits.Bytes, "batch_too_large")
	if err != nil {
		return err
	}
	defer release()
	puts, err := forward.ParsePuts(text)
	if err != nil {
		return fail("bad_batch", err.Error())
	}
	results := make([]forward.Result, len(puts))
	for i, res := range a.cfg.Ingest.Take(r.Context(), ds, puts) {
		results[i].Stored = res.Stored
		if res.Err != nil {
			results[i].Err = forward.NewError(problemOf(res.Err).Code, res.Err.Error())
		}
	}
	h := w.Header()
	h.Set("Content-Type", forward.MediaType)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(forward.AppendResults(make([]byte, 0, 1+21*len(results)), results)) // an error here is the other worker's loss
	return nil
}
