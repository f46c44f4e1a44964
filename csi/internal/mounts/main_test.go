package mounts

import (
	"testing"

	"weir.dev/weir/csi/internal/isolation"
)

func TestMain(m *testing.M) { isolation.Main(m, func() {}) }
