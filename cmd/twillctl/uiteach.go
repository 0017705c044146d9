package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/examples"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/script"
	"github.com/twill-net/twill/target"
	"github.com/twill-net/twill/ui"
)

// classroom is a lab that is shown, to learn in.
type classroom struct{ lab target.Lab }

// lessons are the scripts in an order to learn from, in groups. Those that are in none come last.
var lessons = []struct {
	group   string
	scripts []string
}{
	{"From a cable to an overlay", []string{"arp", "arp-announce", "arp-probe", "arp-proxy", "arp-spoof", "manual-vxlan"}},
	{"A packet between nodes", []string{"article-host-gw", "article-vxlan", "direct-routing", "dual-stack-two-nics", "node-leaves", "heals", "fast-path"}},
	{"What goes wrong", []string{"negative-route-only", "negative-no-fdb", "negative-stale-mac", "negative-mtu", "doctor", "partition", "unreached",
		"tx-checksum", "vagrant-nat", "vagrant-nat-wrong", "behind-nat"}},
	{"Services", []string{"service-clusterip", "service-ping", "service-endpoints", "service-nodeport", "service-headless", "service-sticky",
		"service-hairpin", "service-nearest"}},
	{"NetworkPolicy", []string{"network-policy", "policy-default-deny", "policy-addresses", "policy-open-connection", "network-policy-log"}},
}

// others is the group of the scripts that are in no other.
const others = "What Twill promises"

// healing is how long a fault may take to heal.
const healing = 10 * time.Second

// Faults returns those of the library that fit the lab.
func (c classroom) Faults() ([]ui.Fault, error) {
	l, err := c.lab.Open()
	if err != nil {
		return nil, err
	}
	var all []ui.Fault
	for _, f := range faults.All() {
		if f.Applies(l.Spec()) {
			all = append(all, ui.Fault{Name: f.Name, Description: f.Description, Heals: f.Undo == nil, Lossless: f.Lossless})
		}
	}
	return all, nil
}

// Inject breaks something, and returns when it has healed or was taken back.
func (c classroom) Inject(ctx context.Context, o ui.Order, say func(string)) (ui.Injury, error) {
	l, err := c.lab.Open()
	if err != nil {
		return ui.Injury{}, err
	}
	f, v, err := injury(l, o)
	if err != nil {
		return ui.Injury{}, err
	}
	before, err := faults.NewRecorder(ctx, v.Node.Host)
	if err != nil {
		return ui.Injury{}, err
	}
	say(fmt.Sprintf("%s: %s", v.Node.Name, f.Description))
	if err := f.Inject(ctx, v); err != nil {
		return ui.Injury{}, err
	}
	began := time.Now()
	if f.Undo != nil {
		return exhibit(ctx, f, v, say)
	}
	ctx, cancel := context.WithTimeout(ctx, healing)
	defer cancel()
	for {
		healed, err := hasHealed(ctx, f, v, before)
		took := float64(time.Since(began).Microseconds()) / 1000
		switch {
		case healed:
			return ui.Injury{Healed: true, MS: took, Text: fmt.Sprintf("the agent of %s healed it", v.Node.Name)}, nil
		case ctx.Err() != nil:
			return ui.Injury{MS: took, Text: fmt.Sprintf("it has not healed within %v", healing)}, nil
		case err != nil:
			return ui.Injury{}, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

func hasHealed(ctx context.Context, f faults.Fault, v *faults.Target, before *faults.Recorder) (bool, error) {
	if f.Healed != nil {
		return f.Healed(ctx, v)
	}
	left, err := before.Diff(ctx)
	return len(left) == 0 && err == nil, err
}

// shown is how long a fault that no agent heals stays.
const shown = 20 * time.Second

// exhibit leaves a fault for a while, and takes it back, also when somebody ends the lesson.
func exhibit(ctx context.Context, f faults.Fault, v *faults.Target, say func(string)) (ui.Injury, error) {
	say(fmt.Sprintf("no agent heals this: look at the map and at the doctor; it is taken back after %v, or when you stop it", shown))
	select {
	case <-ctx.Done():
	case <-time.After(shown):
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healing)
	defer cancel()
	return ui.Injury{Text: "taken back"}, f.Heal(ctx, v)
}

// injury returns the fault and the nodes that are meant.
func injury(l *lab.Lab, o ui.Order) (faults.Fault, *faults.Target, error) {
	nodes := l.Nodes()
	if len(nodes) < 2 {
		return faults.Fault{}, nil, errors.New("a fault needs a lab of two nodes at least")
	}
	v := faults.NewTarget(l)
	if o.Node != "" {
		i := slices.IndexFunc(nodes, func(n *lab.Node) bool { return n.Name == o.Node })
		if i < 0 {
			return faults.Fault{}, nil, fmt.Errorf("lab %s has no node %q", l.Name(), o.Node)
		}
		v.Node, v.Peer = nodes[i], nodes[(i+1)%len(nodes)]
	}
	if o.Peer != "" {
		i := slices.IndexFunc(nodes, func(n *lab.Node) bool { return n.Name == o.Peer })
		if i < 0 || nodes[i] == v.Node {
			return faults.Fault{}, nil, fmt.Errorf("lab %s has no peer %q of %s", l.Name(), o.Peer, v.Node.Name)
		}
		v.Peer = nodes[i]
	}
	all := faults.All()
	i := slices.IndexFunc(all, func(f faults.Fault) bool { return f.Name == o.Name })
	if i < 0 || !all[i].AppliesTo(v) {
		return faults.Fault{}, nil, fmt.Errorf("there is no fault %q for this lab: twillctl lab faults lists them", o.Name)
	}
	return all[i], v, nil
}

// Scripts returns the scripts that come with Twill, by groups.
func (c classroom) Scripts() ([]ui.Script, error) {
	rest, err := examples.Names()
	if err != nil {
		return nil, err
	}
	var all []ui.Script
	add := func(group, name string) error {
		data, err := examples.Read(name)
		all = append(all, ui.Script{Name: name, Title: script.Title(data), Group: group, Sections: sections(data)})
		return err
	}
	for _, l := range lessons {
		for _, name := range l.scripts {
			if err := add(l.group, name); err != nil {
				return nil, err
			}
			rest = slices.DeleteFunc(rest, func(n string) bool { return n == name })
		}
	}
	for _, name := range rest {
		if err := add(others, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func sections(data []byte) []string {
	all := []string{}
	for _, s := range script.Steps(data) {
		if s.Section != "" && !slices.Contains(all, s.Section) {
			all = append(all, s.Section)
		}
	}
	return all
}

// Script returns a script's text.
func (c classroom) Script(name string) (string, error) {
	data, err := examples.Read(name)
	return string(data), err
}

// Run runs a script in a lab of its own.
func (c classroom) Run(ctx context.Context, name string, before func(ui.Line) error) error {
	data, err := examples.Read(name)
	if err != nil {
		return err
	}
	r := script.Runner{Prefix: "ui", Follower: follower{before}}
	if err := before(ui.Line{Lab: r.LabName(name)}); err != nil {
		return err
	}
	return r.Run(ctx, name, data, io.Discard)
}

// follower tells the page what a script does.
type follower struct{ tell func(ui.Line) error }

func (f follower) Before(s script.Step) error {
	return f.tell(ui.Line{Line: s.Line, Section: s.Section, Command: s.Command, Check: s.Check()})
}

func (f follower) After(s script.Step, output string, _ error) {
	l := ui.Line{Line: s.Line, Text: strings.TrimRight(output, "\n"), Picture: picture(s)}
	if s.Check() { // what it prints is what the command before did
		l.Text = ""
	}
	if l.Text != "" || l.Picture != "" {
		_ = f.tell(l) // if it fails, the next command ends the script
	}
}

// picture returns what a command drew with -svg, empty if it drew nothing.
func picture(s script.Step) string {
	words := strings.Fields(s.Command)
	i := slices.Index(words, "-svg") + 1
	if i == 0 || i == len(words) {
		return ""
	}
	name := words[i]
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.Dir, name)
	}
	drawn, _ := os.ReadFile(name) // a command that failed drew nothing
	return string(drawn)
}

// Open returns another lab, which need not be there yet.
func (c classroom) Open(name string) target.Source { return target.NewLab(name, version) }
