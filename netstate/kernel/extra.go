package kernel

import (
	"fmt"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// extra collects what an object has beyond what netstate models, so that it differs from every wanted object.
type extra []string

func (e *extra) add(on bool, format string, args ...any) {
	if on {
		*e = append(*e, fmt.Sprintf(format, args...))
	}
}

func (e extra) String() string { return strings.Join(e, " ") }

func macOf(h []byte) (m netstate.MAC) {
	copy(m[:], h)
	return m
}
