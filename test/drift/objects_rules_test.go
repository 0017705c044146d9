//go:build soak

package drift

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// sysctls are objects of one setter each, whose value is another number than the one that is set.
func (f *finder) sysctls() error {
	out, err := f.node.Exec(f.ctx, "sh", "-c", sysctlFiles(f.devices))
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		path, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		file := "/proc/sys/net/" + path
		s := setter{"sysctl " + filepath.Base(path), "echo VALUE >" + file, otherValues(value), "",
			"echo '" + value + "' >" + file, ""}
		f.add(object{name: "sysctl " + path, words: map[string]string{}, scope: sysctlScope(path), setters: []setter{s}})
	}
	return nil
}

// sysctlFiles is a shell command that prints path:value of every parameter of the devices, and of forwarding.
func sysctlFiles(devices []string) string {
	var paths []string
	for _, d := range devices {
		for _, f := range []string{"ipv4", "ipv6"} {
			paths = append(paths, f+"/conf/"+d, f+"/neigh/"+d)
		}
	}
	return "cd /proc/sys/net && grep -rs . " + strings.Join(paths, " ") +
		" ipv4/ip_forward ipv6/conf/all/forwarding || true"
}

func sysctlScope(path string) scope {
	s := scope{family: netstate.IPv6, remoteOnly: strings.Contains(path, "/flannel")}
	if strings.HasPrefix(path, "ipv4/") {
		s.family = netstate.IPv4
	}
	return s
}

func otherValues(value string) string {
	others := []string{"-1", "0", "1", "2", "3", "8", "64", "1000", "1280", "100000"}
	return strings.Join(slices.DeleteFunc(others, func(v string) bool { return v == value }), " ")
}

// nft are the tables, the chains and the rules of nftables.
func (f *finder) nft() error {
	var all struct {
		Objects []map[string]map[string]any `json:"nftables"`
	}
	if err := f.ask("nft -j list ruleset", &all); err != nil {
		return err
	}
	rules, tables := map[string]int{}, map[string]bool{}
	for _, o := range all.Objects {
		if r := o["rule"]; r != nil {
			rules[fmt.Sprint(r["family"], r["table"], r["chain"])]++
		}
	}
	for _, o := range all.Objects {
		c := o["chain"]
		if c == nil || !strings.HasPrefix(fmt.Sprint(c["table"]), "flannel") {
			continue
		}
		family, table, chain := fmt.Sprint(c["family"]), fmt.Sprint(c["table"]), fmt.Sprint(c["name"])
		of := object{name: "nft " + family + " " + table, scope: familyScope(netstate.IPv4), setters: tableSetters,
			words: map[string]string{"FAMILY": family, "TABLE": table, "CHAIN": chain}}
		if family != "ip" {
			of.scope = familyScope(netstate.IPv6)
		}
		if !tables[of.name] {
			f.add(of)
		}
		tables[of.name] = true
		of.name, of.setters = of.name+" "+chain, nftSetters
		f.add(of)
		for n := range rules[family+table+chain] {
			rule := of
			rule.name, rule.setters, rule.words = fmt.Sprintf("%s rule %d", of.name, n+1), ruleSetters, maps.Clone(of.words)
			rule.words["HANDLE"] = fmt.Sprintf("$(nft -a list chain %s %s %s | sed -n '3,$s/.*# handle //p' | sed -n %dp)",
				family, table, chain, n+1)
			f.add(rule)
		}
	}
	return nil
}

// iptables are the chains of iptables.
func (f *finder) iptables() error {
	for i, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"filter", "nat", "mangle"} {
			out, err := f.node.Exec(f.ctx, "sh", "-c", program+" -t "+table+" -S 2>/dev/null || true")
			if err != nil {
				return err
			}
			for line := range strings.Lines(out) {
				chain, ok := strings.CutPrefix(strings.TrimSpace(line), "-N ")
				if !ok || !strings.HasPrefix(chain, "FLANNEL") && !strings.HasPrefix(chain, "TWILL") {
					continue
				}
				f.add(object{name: "iptables " + program + " " + table + " " + chain, setters: chainSetters,
					scope: familyScope(netstate.Families[i]),
					words: map[string]string{"PROGRAM": program, "TABLE": table, "CHAIN": chain}})
			}
		}
	}
	return nil
}

// files are what the agent writes on disk.
func files(n *lab.Node) []string { return []string{n.SubnetFile(), n.CheckpointFile()} }

func (f *finder) files() error {
	for _, path := range files(f.node) {
		f.add(object{name: "file " + filepath.Base(path), setters: fileSetters, scope: scope{none: true},
			words: map[string]string{"PATH": path, "DIR": filepath.Dir(path)}})
	}
	return nil
}
