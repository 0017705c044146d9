package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// fastLimit is how long agents may take until the fast path is on: its entries follow the first pods.
const fastLimit = 10 * time.Second

// waitFast waits until the fast path is on at each node, and returns what an agent says of it if it is not.
func (s *site) waitFast(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fastLimit)
	defer cancel()
	for {
		if why, err = s.fastPathOff(ctx); err != nil || why == "" {
			return why, err
		}
		select {
		case <-ctx.Done():
			return why, nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// fastPathOff asks each agent's /status.
func (s *site) fastPathOff(ctx context.Context) (why string, err error) {
	for _, n := range s.Nodes() {
		text, err := n.Ask(ctx, "/status")
		if err != nil {
			return "", err
		}
		why, err := parseOff(text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", n.Name, err)
		}
		if why != "" {
			return n.Name + ": " + why, nil
		}
	}
	return "", nil
}

// parseOff returns why the fast path is off, by an agent's report; empty if it is on.
func parseOff(report string) (why string, err error) {
	var r agent.Report
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		return "", fmt.Errorf("read the agent's status: %w", err)
	}
	switch {
	case r.FastPath == nil:
		return "the agent says nothing of a fast path", nil
	case !r.FastPath.On:
		return r.FastPath.Why, nil
	}
	return "", nil
}

// counts are packets that met the fast path's programs.
type counts struct{ fast, slow float64 }

func (c counts) since(before counts) counts {
	return counts{c.fast - before.fast, c.slow - before.slow}
}

func (c counts) plus(o counts) counts { return counts{c.fast + o.fast, c.slow + o.slow} }

// share is how many of all packets were fast, 0 to 1.
func (c counts) share() float64 {
	if c.fast+c.slow == 0 {
		return 0
	}
	return c.fast / (c.fast + c.slow)
}

// String is what a reader of the tables must know.
func (c counts) String() string {
	text := fmt.Sprintf("%.1f %% of %.0f packets took the fast path", 100*c.share(), c.fast+c.slow)
	if c.share() < 0.9 {
		text += ", so these figures are not the fast path's"
	}
	return text
}

// counts reads the metrics of both nodes' agents; none without the fast path.
func (s *site) counts(ctx context.Context) (sum counts, err error) {
	if !s.fast {
		return counts{}, nil
	}
	for _, n := range s.Nodes() {
		c, err := nodeCounts(ctx, n)
		if err != nil {
			return counts{}, err
		}
		sum = sum.plus(c)
	}
	return sum, nil
}

func nodeCounts(ctx context.Context, n *lab.Node) (counts, error) {
	text, err := n.Ask(ctx, "/metrics")
	if err != nil {
		return counts{}, err
	}
	return parseCounts(text)
}

var countLine = regexp.MustCompile(`^twill_fastpath_packets_total\{.*\bresult="([^"]*)".*\} (\S+)$`)

// parseCounts reads metrics: packets that took the fast path are counted by the way they went, others by the reason.
func parseCounts(metrics string) (c counts, err error) {
	ways := []string{string(netstate.Encapsulate), string(netstate.ThroughVTEP), string(netstate.NextHop)}
	for line := range strings.Lines(metrics) {
		m := countLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return counts{}, fmt.Errorf("read metrics: %q: %w", line, err)
		}
		if slices.Contains(ways, m[1]) {
			c.fast += n
		} else {
			c.slow += n
		}
	}
	return c, nil
}
