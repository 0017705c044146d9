//go:build vm

package e2e

import (
	"time"

	"github.com/twill-net/twill/lab"
)

// pingInterval is the time between two pings of a stream: a machine that is emulated carries no more.
const pingInterval = 100 * time.Millisecond

const emulated = true

// kernelPaths need a kernel that has them: "make test-vm" boots one.
var kernelPaths = []path{
	{name: "ipip", spec: lab.Spec{Backend: "ipip", Nodes: 3}, only: []string{lab.IPv6}},
	{name: "ipsec", spec: lab.Spec{Backend: "ipsec", Nodes: 2}, only: []string{lab.Dual}},
	{name: "ipipdirect", spec: lab.Spec{Backend: "ipip", DirectRouting: true, Underlay: lab.L3, Nodes: 4}, only: []string{lab.Dual}}, // two nodes a segment
}
