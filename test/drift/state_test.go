//go:build soak

package drift

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
)

// state is what independent programs report of a node: one line an object, with all its attributes.
type state map[string]bool

// volatile are attributes that change by themselves: counters, clocks, and handles that a repair gives out anew.
var volatile = []string{"ifindex", "stats", "stats64", "hello_timer", "tcn_timer", "topology_change_timer", "gc_timer", "used",
	"updated", "confirmed", "refcnt", "probes", "handle", "packets", "bytes", "index", "preferred_life_time", "valid_life_time",
	"hold_timer", "message_age_timer", "forward_delay_timer", "config_pending", "topology_change_ack", "metainfo", "cacheinfo",
	"designated_cost", "link_index", "link_netnsid", "fdb_n_learned"}

// look returns the state of a node. Devices are those of the node that are ours; everything else is reported as it is.
func look(ctx context.Context, n *lab.Node, devices []string) (state, error) {
	s := state{}
	for _, source := range []struct {
		name, command string
		keep          func(object map[string]any) bool
	}{
		{"link", "ip -d -j addr show", nil},
		{"route4", "ip -d -j -4 route show table all", nil},
		{"route6", "ip -d -j -6 route show table all", nil},
		{"neigh", "ip -j neigh show nud all; ", isSet},
		{"proxy", "ip -j neigh show proxy", nil},
		{"fdb", "bridge -d -j fdb show", isSet},
		{"port", "bridge -d -j link show", nil},
		{"nft", `nft -j list ruleset | sed 's/^{"nftables": //; s/}$//'`, nil},
	} {
		out, err := n.Exec(ctx, "sh", "-c", source.command)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(out) == "" {
			continue
		}
		var objects []map[string]any
		if err := json.Unmarshal([]byte(out), &objects); err != nil {
			return nil, fmt.Errorf("%s: %w", source.command, err)
		}
		for _, o := range objects {
			if source.keep != nil && !source.keep(o) || automatic(o) {
				continue
			}
			line, err := json.Marshal(stable(o))
			if err != nil {
				return nil, err
			}
			s[source.name+" "+string(line)] = true
		}
	}
	for _, add := range []func(context.Context, *lab.Node, []string, state) error{addSysctls, addFiles} {
		if err := add(ctx, n, devices, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// isSet reports whether somebody wrote a neighbour or FDB entry, and did not just learn it.
func isSet(object map[string]any) bool {
	states, _ := object["state"].(string)
	if list, ok := object["state"].([]any); ok {
		states = fmt.Sprint(list...)
	}
	dst, _ := object["dst"].(string)
	multicast := strings.HasPrefix(dst, "ff") || strings.HasPrefix(dst, "224.")
	return !multicast && strings.ContainsAny(states, "PNps") && (strings.Contains(states, "PERMANENT") || strings.Contains(states, "NOARP") ||
		states == "permanent" || states == "static")
}

// automatic reports whether the kernel makes an object by itself, for each link: routes of link-local and multicast addresses,
// and the multicast addresses that a device listens to.
func automatic(object map[string]any) bool {
	dst, _ := object["dst"].(string)
	mac, _ := object["mac"].(string)
	return strings.HasPrefix(dst, "fe80:") || strings.HasPrefix(dst, "ff00:") || dst == "multicast" ||
		strings.HasPrefix(mac, "33:33:") || strings.HasPrefix(mac, "01:00:5e:") || object["type"] == "anycast"
}

// stable returns v without what is volatile.
func stable(v any) any {
	switch v := v.(type) {
	case map[string]any:
		kept := map[string]any{}
		for k, e := range v {
			if !slices.Contains(volatile, k) {
				kept[k] = stable(e)
			}
		}
		return kept
	case []any:
		all := []any{}
		for _, e := range v {
			if o, ok := e.(map[string]any); ok && o["scope"] == "link" && o["family"] == "inet6" {
				continue // a link-local address
			}
			all = append(all, stable(e))
		}
		return all
	}
	return v
}

// sysctlFiles is a shell command that prints path:value of every parameter of the devices, and of forwarding.
func sysctlFiles(devices []string) string {
	var paths []string
	for _, d := range devices {
		for _, f := range []string{"ipv4", "ipv6"} {
			paths = append(paths, f+"/conf/"+d, f+"/neigh/"+d)
		}
	}
	return "cd /proc/sys/net && grep -rs . " + strings.Join(paths, " ") + " ipv4/ip_forward ipv6/conf/all/forwarding || true"
}

func addSysctls(ctx context.Context, n *lab.Node, devices []string, s state) error {
	out, err := n.Exec(ctx, "sh", "-c", sysctlFiles(devices))
	for line := range strings.Lines(out) {
		s["sysctl "+strings.TrimSpace(line)] = true
	}
	return err
}

// files are what the agent writes on disk, and the directory of each.
func files(n *lab.Node) []string {
	return []string{n.SubnetFile(), n.Dir() + "/checkpoint.json"}
}

func addFiles(ctx context.Context, n *lab.Node, _ []string, s state) error {
	for _, f := range files(n) {
		out, err := n.Exec(ctx, "sh", "-c", "stat -c '%n %F %a %U %G' "+f+" 2>&1; [ -s "+f+" ] && echo 'has content'; case "+f+
			" in *.env) sort "+f+";; *) grep -c '^{' "+f+";; esac 2>&1")
		if err != nil && out == "" {
			return err
		}
		s["file "+strings.Join(strings.Fields(out), " ")] = true
	}
	return nil
}

// minus returns what s has and o does not, in order.
func (s state) minus(o state) []string {
	var lines []string
	for _, line := range slices.Sorted(maps.Keys(s)) {
		if !o[line] {
			lines = append(lines, line)
		}
	}
	return lines
}

// diff returns how two states differ, a line each; empty if they do not.
func diff(before, after state) []string {
	var lines []string
	for _, l := range before.minus(after) {
		lines = append(lines, "- "+l)
	}
	for _, l := range after.minus(before) {
		lines = append(lines, "+ "+l)
	}
	return lines
}

// tentative reports whether duplicates of an address are still looked for.
func (s state) tentative() bool {
	for line := range s {
		if strings.Contains(line, `"tentative":true`) {
			return true
		}
	}
	return false
}
