package kafka

import (
	"bytes"
	"sync"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lz4Block is the size of a frame's blocks. The writer needs a buffer of that
// size, and so does every reader, however small the batch is; the client's own
// compressor takes 4 MiB, which a heartbeat does not deserve. Blocks do not see
// each other, but lz4 looks back only 64 KiB, so bigger ones gain little.
const lz4Block = lz4.Block256Kb

// compressor makes lz4 frames of batches.
type compressor struct{ writers sync.Pool }

func (c *compressor) Compress(dst *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	w, ok := c.writers.Get().(*lz4.Writer)
	if !ok {
		w = lz4.NewWriter(nil)
		if err := w.Apply(lz4.BlockSizeOption(lz4Block)); err != nil {
			return nil, kgo.CodecError // not for this size
		}
	}
	defer c.writers.Put(w)
	w.Reset(dst)
	if _, err := w.Write(src); err != nil {
		return nil, kgo.CodecError
	}
	if err := w.Close(); err != nil {
		return nil, kgo.CodecError
	}
	return dst.Bytes(), kgo.CodecLz4
}
