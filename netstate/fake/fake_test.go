package fake_test

import (
	"testing"

	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/netstate/netstatetest"
)

func TestConformance(t *testing.T) { netstatetest.Run(t, fresh) }

func fresh(*testing.T) netstatetest.Harness {
	k := fake.New(netstatetest.Left()...)
	return netstatetest.Harness{Kernel: k, Machine: k, Command: k.Run, Index: k.Index}
}
