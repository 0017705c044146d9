// Package e2e drives whole clusters: the real twilld and twill in the lab's namespaces, for every backend,
// address family and store.
package e2e

import (
	"os"
	"testing"

	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
