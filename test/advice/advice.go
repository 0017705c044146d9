// Package advice does what the doctor and the tracer say: it runs the commands that they offer, as a reader would who
// believes them, and holds each command to what it promises. What was found is gone afterwards, or what is found next says
// what remains; nothing else is lost; and no agent undoes it.
package advice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
)

// Offer is what a reader is told first.
type Offer struct {
	Finding string // its ID; empty: nothing is found
	Place   string // where the command is to be run: node1, node1/pod1, underlay
	Command string // empty: no single one mends it
	Serious bool   // it can be why packets are lost
}

func (o Offer) String() string { return o.Place + ": " + o.Command }

// First returns what somebody is told who reads the first finding.
func First(all []doctor.Finding, place string) Offer {
	if len(all) == 0 {
		return Offer{}
	}
	if all[0].Place != "" {
		place = all[0].Place
	}
	return Offer{Finding: all[0].ID, Place: place, Command: all[0].Command, Serious: all[0].Severity == doctor.Broken}
}

// OfTrace returns what somebody is told who reads a trace: the surest loss of a probe, or else where its tables stop.
func OfTrace(t doctor.Trace) Offer {
	if len(t.Lost) > 0 {
		return First(t.Lost, "")
	}
	if s := t.Stopped; s != nil && t.Failed() {
		return Offer{Finding: s.Finding, Place: s.Node, Command: s.Command, Serious: true}
	}
	return Offer{}
}

// Patient is who is advised.
type Patient struct {
	// Ask returns what is offered now.
	Ask func(context.Context) (Offer, error)
	// Run runs a command at a place, and returns what it printed.
	Run func(ctx context.Context, place, command string) (string, error)
	// Lost returns what does not work now, each by a name of its own. Nil: the caller looks itself.
	Lost func(context.Context) []string
	// Needs match offers, as Offer.String writes them, that would take from the patient what it needs.
	Needs []*regexp.Regexp
	// Rest is how long an agent may take to undo what was done, and is waited for; 0: there is no agent.
	Rest time.Duration
}

// Course is what was done.
type Course struct {
	Ran  []Offer
	Left Offer // what is found at the end, which no command mends
}

func (c Course) String() string {
	var lines []string
	for _, o := range c.Ran {
		lines = append(lines, o.String())
	}
	return strings.Join(lines, "; ")
}

// mostCommands is how many commands one fault may take.
const mostCommands = 8

// Follow runs what is offered, one command after the other, as long as there is one. The error says which promise was not
// kept.
func (p Patient) Follow(ctx context.Context) (c Course, err error) {
	var before []string
	if p.Lost != nil {
		before = p.Lost(ctx)
	}
	last, err := p.Ask(ctx)
	for err == nil && last.Command != "" {
		if len(c.Ran) == mostCommands {
			return c, fmt.Errorf("after %d commands another one is offered: %s", len(c.Ran), last)
		}
		if err = p.run(ctx, last); err != nil {
			return c, err
		}
		c.Ran = append(c.Ran, last)
		last, err = p.askAgain(ctx, c.Ran)
	}
	c.Left = last
	if err != nil || len(c.Ran) == 0 {
		return c, err
	}
	if err := p.heals(ctx, before, last); err != nil {
		return c, err
	}
	if p.Rest == 0 {
		return c, nil
	}
	if err := pause(ctx, p.Rest); err != nil {
		return c, err
	}
	again, err := p.Ask(ctx)
	if err == nil && again.Command != "" {
		err = fmt.Errorf("a while later %s is offered for %s: somebody undid what was done", again, again.Finding)
	}
	return c, err
}

// run runs one command.
func (p Patient) run(ctx context.Context, o Offer) error {
	for _, needed := range p.Needs {
		if needed.MatchString(o.String()) {
			return fmt.Errorf("%s is offered for %s: the node needs what it takes away", o, o.Finding)
		}
	}
	if out, err := p.Run(ctx, o.Place, o.Command); err != nil {
		return fmt.Errorf("%s, which is offered for %s, fails: %w %s", o, o.Finding, err, strings.TrimSpace(out))
	}
	return nil
}

// askAgain asks until what is offered was not run already: some commands take effect a moment later.
func (p Patient) askAgain(ctx context.Context, ran []Offer) (o Offer, err error) {
	err = within(ctx, func() (failed, wrong error) {
		if o, failed = p.Ask(ctx); failed == nil && o.Command != "" && slices.Contains(ran, o) {
			wrong = fmt.Errorf("%s was run for %s, and is offered again", o, o.Finding)
		}
		return failed, wrong
	})
	return o, err
}

// heals waits until nothing is lost, or nothing but what was lost before where a finding says what remains.
func (p Patient) heals(ctx context.Context, before []string, last Offer) error {
	if p.Lost == nil {
		return nil
	}
	return within(ctx, func() (failed, wrong error) {
		lost := p.Lost(ctx)
		worse := slices.DeleteFunc(slices.Clone(lost), func(l string) bool { return slices.Contains(before, l) })
		switch {
		case len(worse) > 0:
			wrong = fmt.Errorf("lost since the commands: %s", short(worse))
		case len(lost) > 0 && !last.Serious:
			wrong = fmt.Errorf("still lost, and no finding says why: %s", short(lost))
		}
		return nil, wrong
	})
}

// within asks until nothing is wrong, for as long as a busy machine may take. What failed ends it.
func within(ctx context.Context, ask func() (failed, wrong error)) error {
	for end := time.Now().Add(testwait.Limit / 2); ; {
		failed, wrong := ask()
		if failed != nil || wrong == nil || time.Now().After(end) {
			return errors.Join(failed, wrong)
		}
		if err := pause(ctx, time.Second/4); err != nil {
			return errors.Join(err, wrong)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func short(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s, and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}

// Findings has a doctor, which is a program, look at a node as people on it do.
func Findings(ctx context.Context, n *lab.Node, program string) ([]doctor.Finding, error) {
	out, _ := n.Exec(ctx, program, "doctor", "-o", "json", "--cni-cache-dir", n.CNICache()) // exits 1 with findings
	var report doctor.Diagnosis
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	return report.Findings, nil
}

// Needs are what no command may take from a lab's nodes: their underlay, their way out, and what the agent writes.
func Needs(nodes ...*lab.Node) []*regexp.Regexp {
	patterns := []string{`link (del|delete) (dev )?` + lab.NodeDevice + `\b`, `(addr|address|route) flush .*\b` + lab.NodeDevice + `\b`,
		`link set (dev )?` + lab.NodeDevice + `\b.*\bdown`, `route (del|flush) (default|0\.0\.0\.0/0|::/0)\b`,
		`nft (delete|flush) .*\bflannel-ipv`, `-[FX] (FLANNEL|TWILL)-`}
	for _, n := range nodes {
		for _, a := range n.Underlay() {
			patterns = append(patterns, `^(`+regexp.QuoteMeta(n.Name)+`)?: .*\b(addr|address) del(ete)? `+regexp.QuoteMeta(a.String())+`(/| )`)
		}
	}
	var list []*regexp.Regexp
	for _, pattern := range patterns {
		list = append(list, regexp.MustCompile(pattern))
	}
	return list
}
