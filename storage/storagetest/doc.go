// Package storagetest holds what every cell store must do, as a suite that each
// implementation runs:
//
//	storagetest.Run(t, func(t *testing.T, columnLimit int) (storagetest.Store, string) { … })
//
// It promises to check outcomes, density of added_ids, order and paging. Crash
// and fault behaviour depends on the implementation, which tests it itself.
package storagetest
