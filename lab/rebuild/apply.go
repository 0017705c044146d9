package rebuild

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
)

// patient is the lab's node that is brought to the report's state.
type patient struct {
	*Report
	*lab.Node
	lab   *lab.Lab
	names names
}

// Apply brings the node of which the report is to the state that the report has. Its agent runs on if it ran there, and mends
// what it mends.
func (r *Report) Apply(ctx context.Context, l *lab.Lab) error {
	own := slices.IndexFunc(r.nodes(), r.isOwn)
	if own < 0 || own >= len(l.Nodes()) {
		return fmt.Errorf("lab %s has no node for %s: it was not made of this report", l.Name(), r.facts.Node)
	}
	p := patient{Report: r, Node: l.Nodes()[own], lab: l}
	saved, err := savedLeases(ctx, l, p.Node)
	if err != nil {
		return err
	}
	have, err := parse(collectFrom(ctx, p.Exec), names{})
	if err != nil {
		return err
	}
	p.names = r.nameAll(l, have, saved)
	if !r.facts.Agent.Running {
		if err := p.KillAgent(); err != nil {
			return err
		}
	}
	return p.apply(ctx, have)
}

func (p *patient) apply(ctx context.Context, have state) error {
	want, err := parse(p.files, p.names)
	if err != nil {
		return err
	}
	for _, what := range want.left {
		p.leave("%s", what)
	}
	p.replaceLinks(ctx, want.links, have.links)
	steps := []func(want, have state){
		func(want, have state) { p.setLinks(ctx, want.links, have.links) },
		func(want, have state) { p.setPorts(ctx, want.links, have.links) },
		func(want, have state) { p.lines(ctx, []string{"ip", "addr"}, want.addrs, have.addrs) },
		func(want, have state) { p.setSysctls() },
		func(want, have state) { p.lines(ctx, []string{"ip", "route"}, want.routes, have.routes) },
		func(want, have state) { p.lines(ctx, []string{"ip", "rule"}, want.rules, have.rules) },
		func(want, have state) { p.lines(ctx, []string{"ip", "neigh"}, want.neighs, have.neighs) },
		func(want, have state) { p.lines(ctx, []string{"bridge", "fdb"}, want.fdb, have.fdb) },
		func(want, have state) { p.lines(ctx, []string{"tc", "qdisc"}, want.qdisc, have.qdisc) },
	}
	for _, step := range steps {
		have, err := parse(collectFrom(ctx, p.Exec), names{})
		if err != nil {
			return err
		}
		step(want, have)
	}
	p.setRules(ctx)
	return p.setFiles()
}

// do runs a command on the node. One that is refused is left out.
func (p *patient) do(ctx context.Context, command ...string) {
	if _, err := p.Exec(ctx, command...); err != nil {
		p.leave("%v", err)
	}
}

// maxLines bounds how many objects of a kind are carried over.
const maxLines = 2000

// lines deletes what is there and not wanted, and adds what is wanted and not there.
func (p *patient) lines(ctx context.Context, program []string, want, have []line) {
	run := func(verb string, l line) {
		command := []string{program[0]}
		if l.family != "" {
			command = append(command, l.family)
		}
		p.do(ctx, slices.Concat(append(command, program[1], verb), strings.Fields(l.words))...)
	}
	if len(want) > maxLines {
		p.leave("%d of %d lines of %s: %d are read", len(want)-maxLines, len(want), strings.Join(program, " "), maxLines)
		want = want[:maxLines]
	}
	want, have = p.comparable(program[1], want), p.comparable(program[1], have)
	for _, l := range have {
		if !slices.Contains(want, l) {
			run("del", l)
		}
	}
	verb, ok := map[string]string{"fdb": "append", "route": "append", "neigh": "replace"}[program[1]]
	if !ok {
		verb = "add"
	}
	for _, l := range want {
		if !slices.Contains(have, l) {
			run(verb, l)
		}
	}
}

var lengthOf = regexp.MustCompile(`/\d+ dev ` + lab.NodeDevice + `( nodad)?$`)

// comparable leaves out what is the underlay's own: its network has another length here, and the kernel's route to it.
func (p *patient) comparable(kind string, all []line) (kept []line) {
	for _, l := range all {
		switch {
		case kind == "route" && strings.Contains(l.words, "dev "+lab.NodeDevice+" proto kernel"):
			continue
		case kind == "addr" && lengthOf.MatchString(l.words):
			length := "/24"
			if strings.Contains(l.words, ":") {
				length = "/64"
			}
			l.words = lengthOf.ReplaceAllString(l.words, length+" dev "+lab.NodeDevice+"$1")
		}
		kept = append(kept, l)
	}
	return kept
}

// ofNetwork matches the parameters that are a network namespace's own, of those that reports hold.
var ofNetwork = regexp.MustCompile(`^net/(ipv4/ip_forward|ipv[46]/(conf|neigh)/[a-z0-9][a-z0-9.-]*/[a-z0-9_]+|bridge/bridge-nf-call-[a-z0-9]+)$`)

var digits = regexp.MustCompile(`^-?[0-9]{1,9}$`)

// setSysctls writes those of the whole node first, which change those of the devices.
func (p *patient) setSysctls() {
	var all []string
	for name := range p.facts.Sysctls {
		if ofNetwork.MatchString(name) && digits.MatchString(p.facts.Sysctls[name]) {
			all = append(all, name)
		}
	}
	whole := func(name string) int {
		if strings.Contains(name, "/all/") || strings.HasSuffix(name, "ip_forward") {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b string) int { return whole(a) - whole(b) })
	for _, name := range all {
		if err := p.SetSysctl(string(p.names.replace([]byte(name))), p.facts.Sysctls[name]); err != nil {
			p.leave("%v", err)
		}
	}
}

func onOff(yes bool) string {
	if yes {
		return "on"
	}
	return "off"
}
