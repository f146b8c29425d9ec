package feed

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
)

// Random failures and durations: a row's cells must come in order, each until
// it succeeds, and no commit may pass an unfinished cell.
func TestOrderAndContiguousCommits(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var mu sync.Mutex
		finished := make(map[int64]bool)
		last := make(map[uuid.UUID]int64)
		running := make(map[uuid.UUID]bool)
		atOnce, most := 0, 0
		_, s, stop := run(t, Config{
			Parallel: 4, CommitEvery: 10 * time.Millisecond,
			Handle: func(ctx context.Context, d Delivery) error {
				mu.Lock()
				if running[d.Row] {
					t.Errorf("two cells of row %s at once", d.Row)
				}
				if before, ok := last[d.Row]; ok && before >= d.Offset {
					t.Errorf("row %s: offset %d after %d", d.Row, d.Offset, before)
				}
				running[d.Row] = true
				atOnce++
				most = max(most, atOnce)
				wait := time.Duration(rnd.IntN(20)) * time.Millisecond
				fail := rnd.IntN(4) == 0
				mu.Unlock()
				time.Sleep(wait)
				mu.Lock()
				defer mu.Unlock()
				atOnce--
				running[d.Row] = false
				if fail {
					return errPlanned
				}
				last[d.Row] = d.Offset
				finished[d.Offset] = true
				return nil
			},
		})
		s.assign(fresh)
		checked := 0
		check := func() {
			mu.Lock()
			defer mu.Unlock()
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, c := range s.commits[checked:] {
				for o := int64(0); o < c.Offset; o++ {
					if !finished[o] {
						t.Fatalf("offset %d was committed, but %d is not finished", c.Offset, o)
					}
				}
			}
			checked = len(s.commits)
		}
		const n = 600
		for o := int64(0); o < n; o += 30 {
			s.give(p0, cells(17, o, o+30)...)
			sleep(15 * time.Millisecond)
			check()
		}
		for s.committed(p0).Offset < n {
			sleep(11 * time.Millisecond)
			check()
		}
		if most != 4 {
			t.Errorf("at most %d rows at once, want 4", most)
		}
		stop()
		if len(finished) != n {
			t.Errorf("%d cells finished, want %d", len(finished), n)
		}
	})
}

func TestPoisonedRowHoldsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		healed, attempts := false, 0
		var others []int64
		f, s, stop := run(t, Config{
			MaxCells: 100, Parallel: 2, BackoffMin: time.Second, BackoffMax: 4 * time.Second,
			Handle: func(_ context.Context, d Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				if d.Row == rowKey(0) {
					attempts++
					if !healed {
						panic("no such card")
					}
				}
				others = append(others, d.Offset)
				return nil
			},
		})
		s.assign(fresh)
		s.give(p0, cell(0, 0))
		for o := int64(1); o < 99; o++ {
			s.give(p0, cell(int(1+o%10), o))
		}
		synctest.Wait()
		if len(others) != 98 || s.isPaused(p0) {
			t.Fatalf("%d cells of other rows, want 98; paused %v, want false", len(others), s.isPaused(p0))
		}
		s.give(p0, cell(1, 99))
		synctest.Wait()
		if !s.isPaused(p0) {
			t.Fatal("a full window did not pause the partition")
		}
		sleep(60 * time.Second)
		// 1 + 2 + 4 + 4 … seconds, each less up to a half.
		if attempts < 15 || attempts > 33 {
			t.Errorf("%d attempts in a minute, want 15 to 33", attempts)
		}
		if c := s.committed(p0); c.Offset != -1 {
			t.Errorf("committed %d past the failing cell", c.Offset)
		}
		if old, ok := f.Oldest(); !ok || !old.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("oldest unfinished cell %v %v", old, ok)
		}
		mu.Lock()
		healed = true
		mu.Unlock()
		sleep(5 * time.Second)
		if c := s.committed(p0); c.Offset != 100 || s.isPaused(p0) {
			t.Errorf("committed %d, want 100; paused %v, want false", c.Offset, s.isPaused(p0))
		}
		stop()
	})
}

func TestRevokeLetsHandlersFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		_, s, stop := run(t, Config{
			Parallel: 1, Drain: 10 * time.Second, CommitEvery: time.Hour,
			Handle: func(ctx context.Context, d Delivery) error {
				begun++
				time.Sleep(3 * time.Second)
				return ctx.Err()
			},
		})
		s.assign(fresh)
		s.give(p0, cells(5, 0, 5)...)
		sleep(4 * time.Second) // the second cell is being handled
		s.revoke(p0)
		if c := s.committed(p0); c.Offset != 2 {
			t.Errorf("committed %d at the revocation, want 2", c.Offset)
		}
		if begun != 2 {
			t.Errorf("%d cells begun, want 2", begun)
		}
		stop()
	})
}

func TestRevokeEndsSlowHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var cause error
		_, s, stop := run(t, Config{
			Drain: 10 * time.Second,
			Handle: func(ctx context.Context, d Delivery) error {
				if d.Offset == 0 {
					return nil
				}
				<-ctx.Done()
				cause = context.Cause(ctx)
				<-release // it takes no notice
				return nil
			},
		})
		s.assign(fresh)
		s.give(p0, cells(5, 0, 2)...)
		begin := time.Now()
		s.revoke(p0)
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("the revocation took %s, want the 10 s of Drain", d)
		}
		synctest.Wait()
		if !errors.Is(cause, ErrTaken) {
			t.Errorf("cause of the handler's context: %v, want ErrTaken", cause)
		}
		// Given back to us: the late result must not count for the new holder.
		a := fresh
		a.Offset, a.Fresh, a.Metadata, a.Generation = 1, false, s.committed(p0).Metadata, 1
		again := s.assign(a)
		close(release)
		sleep(time.Second)
		if c := s.committed(p0); c.Offset != 1 {
			t.Errorf("committed %d, want 1", c.Offset)
		}
		if got := parseMarks(again.Metadata); got.Generation != 2 {
			t.Errorf("generation %d, want 2: higher than the one before", got.Generation)
		}
		stop()
	})
}

func TestLostPartitionCommitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, stop := run(t, Config{
			CommitEvery: 100 * time.Millisecond,
			Handle: func(ctx context.Context, d Delivery) error {
				select {
				case <-ctx.Done():
					return nil // and says that it is done
				case <-time.After(time.Duration(d.Offset) * 30 * time.Millisecond):
					return nil
				}
			},
		})
		s.assign(fresh)
		s.give(p0, cells(5, 0, 5)...)
		sleep(50 * time.Millisecond) // offset 0 and 1 are finished, not committed
		s.lose(p0)
		sleep(time.Second)
		if c := s.committed(p0); c.Offset != -1 {
			t.Errorf("committed %d after the partition was lost", c.Offset)
		}
		stop()
	})
}

func TestHolesDuplicatesAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int64
		var stopped error
		f, s, stop := run(t, Config{
			Parallel: 1,
			Handle:   func(_ context.Context, d Delivery) error { got = append(got, d.Offset); return nil },
			OnStop:   func(_ kafka.Partition, err error) { stopped = err },
		})
		s.assign(fresh)
		s.give(p0, cellSeq(1, 0, 1), cellSeq(1, 2, 2), cellSeq(1, 3, 1), cellSeq(1, 4, 2), cellSeq(1, 5, 3))
		sleep(time.Second)
		if want := []int64{0, 2, 5}; !equal(got, want) {
			t.Fatalf("handled %v, want %v", got, want)
		}
		c := s.committed(p0)
		if c.Offset != 6 || !strings.Contains(c.Metadata, `"BASE":{"0":3}`) {
			t.Fatalf("committed %d %s, want 6 and the mark 3", c.Offset, c.Metadata)
		}

		// Another member goes on; the marks come with the commit.
		s.revoke(p0)
		a := kafka.Assignment{Partition: p0, Offset: 6, Metadata: c.Metadata, Generation: 2}
		s.assign(a)
		s.give(p0, cellSeq(1, 6, 3), cellSeq(1, 7, 4), cellSeq(1, 8, 6), cellSeq(1, 9, 7))
		sleep(time.Second)
		if want := []int64{0, 2, 5, 7}; !equal(got, want) {
			t.Fatalf("handled %v, want %v", got, want)
		}
		var hole *HoleError
		if !errors.As(stopped, &hole) || hole.Want != 5 || hole.Got != 6 || !errors.As(f.Err(), &hole) {
			t.Errorf("stopped by %v, want the hole of 5", stopped)
		}
		if c := s.committed(p0); c.Offset != 8 || !s.isPaused(p0) {
			t.Errorf("committed %d, want 8; paused %v, want true", c.Offset, s.isPaused(p0))
		}
		s.give(p0, cellSeq(1, 10, 5))
		synctest.Wait()
		if len(got) != 4 {
			t.Error("a stopped partition handed a cell out")
		}
		stop()
	})
}

func TestFirstSequence(t *testing.T) {
	for name, c := range map[string]struct {
		a    kafka.Assignment
		from kafka.From
		ok   bool
	}{
		"from zero, the first is missing": {fresh, kafka.FromZero(), false},
		"from zero, the log begins late":  {kafka.Assignment{Partition: p0, Fresh: true, Offset: 5}, kafka.FromZero(), false},
		"from latest":                     {kafka.Assignment{Partition: p0, Fresh: true, Offset: 5}, kafka.FromLatest(), true},
		"from latest, a new partition":    {fresh, kafka.FromLatest(), false},
		"a commit of another tool":        {kafka.Assignment{Partition: p0, Offset: 5}, kafka.FromZero(), true},
		"another tool went back to zero":  {kafka.Assignment{Partition: p0}, kafka.FromLatest(), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s, stop := run(t, Config{From: c.from, Handle: func(context.Context, Delivery) error { return nil }})
				s.assign(c.a)
				s.give(p0, cellSeq(1, 7, 3))
				synctest.Wait()
				if err := f.Err(); (err == nil) != c.ok {
					t.Errorf("err %v, want ok %v", err, c.ok)
				}
				stop()
			})
		})
	}
}

func TestRecordThatIsNoCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int64
		f, s, stop := run(t, Config{Parallel: 1, Handle: func(_ context.Context, d Delivery) error { got = append(got, d.Offset); return nil }})
		s.assign(fresh)
		bad := cell(2, 1)
		bad.Headers = nil
		s.give(p0, cell(1, 0), bad, cell(1, 2))
		synctest.Wait()
		var rec *RecordError
		if !errors.As(f.Err(), &rec) || rec.Offset != 1 {
			t.Errorf("err %v, want the record at offset 1", f.Err())
		}
		if want := []int64{0}; !equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
		stop()
	})
}

func TestRefusedCommitIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, stop := run(t, Config{Handle: func(context.Context, Delivery) error { return nil }})
		s.assign(fresh)
		s.mu.Lock()
		s.refuse = errPlanned
		s.mu.Unlock()
		s.give(p0, cells(1, 0, 3)...)
		sleep(time.Second)
		s.mu.Lock()
		s.refuse = nil
		s.mu.Unlock()
		sleep(time.Second)
		if c := s.committed(p0); c.Offset != 3 {
			t.Errorf("committed %d, want 3", c.Offset)
		}
		stop()
	})
}

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		var got []int64
		fail := 2
		_, s, stop := run(t, Config{
			BatchCells: 10,
			HandleBatch: func(_ context.Context, take func() Batch) error {
				b := take()
				time.Sleep(time.Millisecond)
				if fail > 0 && len(got) == 11 {
					fail--
					if b.Attempt > 3 {
						t.Errorf("attempt %d", b.Attempt)
					}
					panic("lost the server")
				}
				sizes = append(sizes, len(b.Cells))
				got = append(got, b.Offsets...)
				if b.Next != b.Offsets[len(b.Offsets)-1]+1 || len(b.Cells) != len(b.Offsets) {
					t.Errorf("batch %v, next %d", b.Offsets, b.Next)
				}
				return nil
			},
		})
		s.assign(fresh)
		s.give(p0, cell(0, 0))
		synctest.Wait()
		s.give(p0, cells(3, 1, 26)...)
		sleep(time.Second)
		if len(got) != 26 || sizes[0] != 1 || sizes[1] != 10 || sizes[3] != 5 {
			t.Fatalf("batches of %v", sizes)
		}
		for i, o := range got {
			if o != int64(i) {
				t.Fatalf("order %v", got)
			}
		}
		if c := s.committed(p0); c.Offset != 26 {
			t.Errorf("committed %d, want 26", c.Offset)
		}
		stop()
	})
}

func TestOnAssignMayGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, stop := run(t, Config{
			HandleBatch: func(_ context.Context, take func() Batch) error { take(); return nil },
			OnAssign:    func(_ context.Context, a *Assignment) error { a.Offset = 4; return nil },
		})
		m := marks{Version: 1, Whole: true}
		m.set(0, "BASE", 9)
		a := s.assign(kafka.Assignment{Partition: p0, Offset: 9, Metadata: m.String()})
		if a.Offset != 4 || strings.Contains(a.Metadata, "BASE") {
			t.Errorf("starts at %d with %s, want 4 and no marks", a.Offset, a.Metadata)
		}
		s.give(p0, cell(1, 4))
		sleep(time.Second)
		if c := s.committed(p0); c.Offset != 5 {
			t.Errorf("committed %d, want 5", c.Offset)
		}
		stop()
	})
}

func TestMarksFitIntoMetadata(t *testing.T) {
	m := marks{Version: 1, Generation: 3, Whole: true}
	for i := range 1000 {
		m.set(cellog.ShardID(i), "BASE", 1<<40)
	}
	if s := m.String(); len(s) > kafka.MaxMetadata || parseMarks(s).Generation != 3 || parseMarks(s).Whole {
		t.Errorf("metadata %s", s)
	}
	for _, bad := range []string{"", "x", "{}", `{"v":2,"gen":9}`, "null"} {
		if m := parseMarks(bad); m.Generation != 0 || m.Whole {
			t.Errorf("%q gave %+v", bad, m)
		}
	}
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// sleep lets fake time pass and everything else come to rest.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
