//go:build interop

package interop

import (
	"testing"

	"github.com/cellog/cellog/internal/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }
