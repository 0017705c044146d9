//go:build soak

package guest

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/test/advice"
)

// ofDevice finds the device that a command is about.
var ofDevice = regexp.MustCompile(`\bdev (\S+)`)

// legitimate are findings about what a host may have where pods work: networks among their addresses, and with them Docker's
// masquerading. The program that a mesh has chained is on no host of these.
var legitimate = []string{"network-overlap", "peer-skipped", "masquerade-catches-pods", "plugin-missing"}

// follow does what the doctor says on this host: it takes from the host no more than the commands say, and no way of packets.
func (g *guest) follow(pod *lab.Pod) {
	before := g.look()
	course, err := advice.Patient{
		Ask: func(ctx context.Context) (advice.Offer, error) {
			all, err := advice.Findings(ctx, g.node, filepath.Join(labtest.BinDir(g), "twillctl"))
			return advice.First(all, g.node.Name), err
		},
		Run: func(ctx context.Context, _, command string) (string, error) {
			return g.node.Exec(ctx, "sh", "-ec", command)
		},
		Lost:  func(context.Context) []string { return g.lost(pod) },
		Needs: advice.Needs(g.node),
		Rest:  time.Second,
	}.Follow(g.Context())
	if err != nil {
		g.Errorf("the doctor misleads: %v", err)
	}
	if left := course.Left; pod != nil && left.Serious && !slices.Contains(legitimate, left.Finding) && len(g.lost(pod)) == 0 {
		g.Errorf("nothing is lost on this host, and the doctor finds %s", left.Finding)
	}
	if len(course.Ran) == 0 {
		return
	}
	g.Logf("the doctor's commands: %s", course)
	now := g.look()
	for line := range strings.Lines(before.differs(now)) {
		if !isAbout(line, course.Ran) {
			g.Errorf("the doctor's commands %s took or gave more than they say: %s", course, line)
		}
	}
	g.was, g.idleAtPeer = now, false // what the commands mend is not in the way any more
}

// isAbout reports whether a line of the picture is about a device of the commands, or a rule of a firewall where one is deleted.
func isAbout(line string, ran []advice.Offer) bool {
	return slices.ContainsFunc(ran, func(o advice.Offer) bool {
		if m := ofDevice.FindStringSubmatch(o.Command); m != nil {
			return regexp.MustCompile(`\b` + regexp.QuoteMeta(m[1]) + `\b`).MatchString(line)
		}
		return strings.Contains(o.Command, "tables -t ") && (strings.HasPrefix(line, "nft ") || strings.HasPrefix(line, "iptables"))
	})
}

// lost are the ways on which packets do not pass: the host's, and those from the pod to the peer's and to the outside.
func (g *guest) lost(pod *lab.Pod) (list []string) {
	for _, p := range g.probes {
		if g.passes(p) != nil {
			list = append(list, fmt.Sprintf("%s (%s)", p.what, p.to))
		}
	}
	if pod == nil {
		return list
	}
	for _, a := range g.beyond() {
		if _, err := pod.Ping(g.Context(), host.Ping{To: a, Timeout: 2 * time.Second}); err != nil {
			list = append(list, "from the pod to "+a.String())
		}
	}
	return list
}
