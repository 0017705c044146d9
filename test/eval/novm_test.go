//go:build !vm

package eval

import "github.com/twill-net/twill/lab/faults"

// possible reports whether a fault can be injected here.
func possible(faults.Fault) bool { return true }
