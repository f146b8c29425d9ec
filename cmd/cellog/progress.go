package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a bar on a terminal, and nothing anywhere else.
type progress struct {
	w    io.Writer
	p    *mpb.Progress
	bar  *mpb.Bar
	text atomic.Pointer[string]
}

// newProgress makes a bar of total units (bytes, shards); total zero means
// that the end is unknown.
func newProgress(w io.Writer, name string, total int64) *progress {
	b := &progress{w: w}
	empty := ""
	b.text.Store(&empty)
	f, ok := w.(*os.File)
	if !ok {
		return b
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return b
	}
	b.p = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	b.bar = b.p.AddBar(total, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name+" "), decor.Percentage(decor.WC{W: 5})),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return *b.text.Load() }), decor.Name("  "),
			decor.AverageETA(decor.ET_STYLE_GO)))
	return b
}

// reader counts what is read through it.
func (b *progress) reader(r io.Reader) io.Reader {
	if b.bar == nil {
		return r
	}
	counted, err := b.bar.ProxyReader(r)
	if err != nil { // the bar is done
		return r
	}
	return counted
}

// add moves the bar on.
func (b *progress) add(n int64) {
	if b.bar != nil {
		b.bar.IncrInt64(n)
	}
}

// set moves the bar to a place of a total that may only now be known.
func (b *progress) set(n, total int64) {
	if b.bar != nil {
		b.bar.SetTotal(total, false)
		b.bar.SetCurrent(n)
	}
}

// note shows a text beside the bar.
func (b *progress) note(text string) { b.text.Store(&text) }

// printf writes a line above the bar.
func (b *progress) printf(format string, args ...any) {
	w := b.w
	if b.p != nil {
		w = b.p
	}
	fmt.Fprintf(w, format, args...)
}

// done ends the bar; abort ends it if that has not happened.
func (b *progress) done(ok bool) {
	if b.bar == nil {
		return
	}
	if ok {
		b.bar.SetTotal(-1, true)
	} else {
		b.bar.Abort(true)
	}
	b.p.Wait()
	b.bar, b.p = nil, nil
}

func (b *progress) abort() { b.done(false) }
