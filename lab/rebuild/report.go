// Package rebuild makes a lab of what twillctl report saw on a node. A report may come from anybody: what is read of it is
// typed and bounded, and nothing of it names a file or a program of this machine.
package rebuild

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/subnet"
)

// commands are those whose output a report holds, by the names of its files.
var commands = map[string][]string{
	"ip-addr.json":       {"ip", "-j", "-d", "addr"},
	"ip-route.json":      {"ip", "-4", "-j", "route", "show", "table", "all"},
	"ip-route6.json":     {"ip", "-6", "-j", "route", "show", "table", "all"},
	"ip-rule.json":       {"ip", "-4", "-j", "rule"},
	"ip-rule6.json":      {"ip", "-6", "-j", "rule"},
	"ip-neigh.json":      {"ip", "-j", "neigh", "show", "nud", "permanent"},
	"bridge-fdb.json":    {"bridge", "-j", "fdb"},
	"tc-qdisc.json":      {"tc", "-j", "qdisc"},
	"nft.txt":            {"nft", "list", "ruleset"},
	"iptables-save.txt":  {"iptables-save", "-c"},
	"ip6tables-save.txt": {"ip6tables-save", "-c"},
}

// Collect runs the commands whose output a report holds. It leaves out programs that are not installed.
func Collect(run func(command ...string) ([]byte, error)) map[string][]byte {
	files := map[string][]byte{}
	for name, command := range commands {
		if out, err := run(command...); err == nil {
			files[name] = out
		}
	}
	return files
}

// Report is what was seen on one node.
type Report struct {
	facts facts
	files map[string][]byte
	seen  state    // with the report's names
	left  []string // what is not carried over
}

// facts are those of doctor.Facts that are used.
type facts struct {
	Node  string
	Agent struct {
		Running            bool
		Policies, FastPath *struct{}
	}
	Lease struct {
		Error           string
		Missing, Hidden bool
		Network         subnet.Config
		Snapshot        subnet.Snapshot
	}
	Underlay struct {
		Underlays []struct {
			Dev string
			MTU int
		}
	}
	PodMTU       int
	Env          doctor.EnvFile
	CutOff       []doctor.CutOff
	Sysctls      map[string]string
	CNI          doctor.CNI
	Reservations doctor.Reservations
	Programs     []doctor.Program
	Release      string
}

// errEarlier is said of a report without the files of Collect.
var errEarlier = errors.New("it has no ip-addr.json: it was written by an earlier twillctl, or on a node without iproute2")

// Read reads the files of a report.
func Read(files map[string][]byte) (*Report, error) {
	r := &Report{files: files}
	data, ok := files["facts.json"]
	if !ok {
		return nil, errors.New("it has no facts.json: want a file that twillctl report wrote")
	}
	if err := json.Unmarshal(data, &r.facts); err != nil {
		return nil, fmt.Errorf("its facts.json is of another version: %w", err)
	}
	if _, ok := files["ip-addr.json"]; !ok {
		return nil, errEarlier
	}
	if l := r.facts.Lease; l.Missing || l.Hidden || l.Error != "" || len(l.Network.Pools) == 0 || len(l.Snapshot.Local.Stacks) == 0 {
		return nil, errors.New("it holds no lease: the agent's checkpoint could not be read when it was written")
	}
	var err error
	r.seen, err = parse(files, names{})
	return r, err
}

// leave notes what is not carried over.
func (r *Report) leave(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.left, text) {
		r.left = append(r.left, text)
	}
}

// Left are what was not carried over, a line each.
func (r *Report) Left() []string { return slices.Clone(r.left) }

// leases are the node's own and its peers', the oldest first: of two with the same subnet the earlier one holds it.
func (r *Report) leases() []subnet.Lease {
	s := r.facts.Lease.Snapshot
	s.Local.Node = cmp.Or(s.Local.Node, r.facts.Node)
	return append([]subnet.Lease{s.Local}, s.Peers...)
}

// nodes are the cluster's leases, by the nodes' addresses on the underlay: the order of a lab's nodes.
func (r *Report) nodes() []subnet.Lease {
	all := r.leases()
	all = slices.DeleteFunc(all, func(l subnet.Lease) bool { return len(l.Stacks) == 0 })
	slices.SortStableFunc(all, func(a, b subnet.Lease) int {
		return cmp.Or(a.Stacks[0].Underlay.Compare(b.Stacks[0].Underlay), strings.Compare(a.Node, b.Node))
	})
	return all
}

// ports are the pods' ports and the addresses behind them, also of ports that are gone.
func (r *Report) ports() map[string][]netip.Addr {
	all := podPorts(r.seen.links)
	for _, c := range r.facts.CutOff {
		all[c.Dev] = c.Addrs
	}
	return all
}

// collectFrom is Collect in a namespace of the lab.
func collectFrom(ctx context.Context, exec func(context.Context, ...string) (string, error)) map[string][]byte {
	return Collect(func(command ...string) ([]byte, error) {
		out, err := exec(ctx, command...)
		return bytes.TrimSpace([]byte(out)), err
	})
}
