//go:build soak

package causes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/test/advice"
)

// follow does what the doctor says about a cause that hurts; about each second one, what a trace says between two pods that
// do not reach each other.
func (t *trial) follow() {
	p := advice.Patient{Ask: t.askDoctor, Run: t.runAt, Lost: t.lost, Needs: advice.Needs(t.lab.Nodes()...), Rest: healed}
	if t.Number%2 == 1 {
		first := t.oracle.matrix(t.Context(), patience).real()
		if len(first) == 0 {
			return // an entry that nobody confirms is forgotten after some seconds
		}
		way := first.names()[0]
		from, to := t.address(way.from, way.what), t.address(way.to, way.what)
		p.Ask = func(ctx context.Context) (advice.Offer, error) { return t.askTrace(ctx, from, to) }
		p.Lost = func(ctx context.Context) []string { return t.lostFor(ctx, way, first) }
		t.By = "trace " + way.from + " " + way.to
	}
	course, err := p.Follow(t.Context())
	t.Ran = course.String()
	if err != nil {
		t.Misled = err.Error()
	}
}

// ofIPv6 matches what kinds of traffic are named that are IPv6's: tcp6, udp6 full.
var ofIPv6 = regexp.MustCompile(`^[a-z]+6`)

// address is the one of a pod by which it was lost: a trace to its name follows IPv4.
func (t *trial) address(pod, what string) string {
	for _, p := range t.oracle.pods {
		if p.ID() == pod {
			f := map[bool]family{true: ip6, false: ip4}[ofIPv6.MatchString(what)]
			return addrOf(p.Addrs, f).String()
		}
	}
	return pod
}

func (t *trial) askDoctor(ctx context.Context) (advice.Offer, error) {
	first, _, err := ask(ctx, t.program, t.lab.Name())
	return advice.Offer{Finding: first.ID, Place: first.Place, Command: first.Command, Serious: first.broken()}, err
}

func (t *trial) askTrace(ctx context.Context, from, to string) (advice.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, t.program, "trace", "--lab", t.lab.Name(), "-o", "json", from, to).Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return advice.Offer{}, fmt.Errorf("twillctl trace: %w", err)
	}
	var trace doctor.Trace
	if err := json.Unmarshal(out, &trace); err != nil {
		return advice.Offer{}, fmt.Errorf("read the answer of twillctl trace: %w", err)
	}
	return advice.OfTrace(trace), nil
}

func (t *trial) runAt(ctx context.Context, place, command string) (string, error) {
	h, err := t.lab.Find(place)
	if err != nil {
		return "", err
	}
	return h.Exec(ctx, "sh", "-ec", command)
}

// lost is what does not arrive now.
func (t *trial) lost(ctx context.Context) []string {
	return named(t.oracle.matrix(ctx, patience).real())
}

// lostFor is lost for who follows a trace: what was lost between other pods before, it does not speak of.
func (t *trial) lostFor(ctx context.Context, way probe, before losses) []string {
	now := t.oracle.matrix(ctx, patience).real()
	for p := range now {
		if _, was := before[p]; was && (p.from != way.from || p.to != way.to) {
			delete(now, p)
		}
	}
	return named(now)
}

// names are the probes that were lost, in an order.
func (l losses) names() (list []probe) {
	for p := range l {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b probe) int { return strings.Compare(a.String(), b.String()) })
	return list
}

func named(l losses) (list []string) {
	for _, p := range l.names() {
		list = append(list, p.String())
	}
	return list
}
