//go:build !vm

package eval

import (
	"time"

	"github.com/twill-net/twill/lab/faults"
)

// limit is how long nine of ten looks may take.
const limit = 2 * time.Second

// possible reports whether a fault can be injected here.
func possible(faults.Fault) bool { return true }
