package rig

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog/bench/workload"
	"github.com/cellog/cellog/cdc"
)

// runLimit is workload.Drop. It prints how many cells are done, ten times a
// second and at the end.
func runLimit(ctx context.Context, src cdc.Source, n int64, inflate bool) error {
	var done atomic.Int64
	stop := make(chan struct{})
	var printer sync.WaitGroup
	printer.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Println(done.Load())
			case <-stop:
				fmt.Println(done.Load())
				return
			}
		}
	})
	err := workload.Drop(ctx, src, datastore, n, inflate, &done)
	close(stop)
	printer.Wait()
	return err
}
