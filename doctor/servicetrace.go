package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/service"
)

// NewServiceTrace returns a trace from a pod to a Service, without anything yet.
func NewServiceTrace(src netip.Addr, dst string) Trace {
	return Trace{Schema: Schema, Src: src.String(), Dst: dst, Forward: []Step{}, Lost: []Finding{}}
}

// Endpoint returns the endpoint that the path is followed to: one that fails, else one that was chosen.
func (t Trace) Endpoint() (to netip.AddrPort, ok bool) {
	for _, r := range t.Services {
		e, chosen := r.Next()
		switch {
		case chosen && r.Failed():
			return e, true
		case chosen && !ok:
			to, ok = e, true
		}
	}
	return to, ok
}

// failsService reports whether connections to the Service fail.
func (t Trace) failsService() bool {
	return t.Problem != nil || slices.ContainsFunc(t.Services, service.Report.Failed)
}

// writeSoundPath writes only the end of a path that is not the reason for what fails.
func (t Trace) writeSoundPath(b *strings.Builder) {
	if len(t.Forward) > 0 {
		fmt.Fprintf(b, "the path %s → %s and back is not the reason\n", t.Src, t.Dst)
		t.writeEnd(b)
	}
}

func (t Trace) writeServices(b *strings.Builder) {
	for _, r := range t.Services {
		r.Write(b)
	}
	if t.Problem != nil {
		t.Problem.Write(b)
	}
}
