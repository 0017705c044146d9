package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/netstate/fastpath"
)

// fastLimit is how long agents may take until the fast path is on: its entries follow the first pods.
const fastLimit = time.Minute

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

// counts are packets that met the fast path's programs, by what came of them.
type counts struct {
	fast uint64
	slow map[string]uint64 // by the reason
}

// add adds what was counted since before.
func (c *counts) add(now, before counts) {
	c.fast += now.fast - before.fast
	for reason, n := range now.slow {
		if n -= before.slow[reason]; n > 0 {
			if c.slow == nil {
				c.slow = map[string]uint64{}
			}
			c.slow[reason] += n
		}
	}
}

// String is what a reader of the tables must know.
func (c counts) String() string {
	all, most := c.fast, ""
	for _, reason := range slices.Sorted(maps.Keys(c.slow)) {
		all += c.slow[reason]
		if c.slow[reason] > c.slow[most] {
			most = reason
		}
	}
	share := 0.0
	if all > 0 {
		share = float64(c.fast) / float64(all)
	}
	text := fmt.Sprintf("%.1f %% of %d packets took the fast path", 100*share, all)
	if share < 0.9 {
		text += ", so these figures are not the fast path's"
		if most != "" {
			text += "; most others: " + most
		}
	}
	return text
}

// counts reads what the programs of both nodes counted; nothing without the fast path.
func (s *site) counts() (sum counts, err error) {
	if !s.fast {
		return counts{}, nil
	}
	for _, n := range s.Nodes() {
		if err := n.Do(func() error {
			p, err := fastpath.OpenPinned(s.BPFDir())
			if err != nil {
				return err
			}
			defer p.Close()
			c, err := p.Counts()
			sum.add(byResult(c), counts{})
			return err
		}); err != nil {
			return counts{}, fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return sum, nil
}

func byResult(c fastpath.Counts) counts {
	sum := counts{slow: map[string]uint64{}}
	for _, r := range c.Results {
		if r.Fast {
			sum.fast += r.Packets
		} else {
			sum.slow[r.Result] += r.Packets
		}
	}
	return sum
}
