//go:build soak

package drift

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func (f *finder) routes() error {
	for _, family := range []string{"-4", "-6"} {
		out, err := f.node.Exec(f.ctx, "ip", "-d", family, "route", "show", "table", "main")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if o, ok := f.route(family, strings.Fields(line)); ok {
				f.add(o)
			}
		}
	}
	return nil
}

// route reads a line of "ip -d route": a type, a prefix, and pairs of words.
func (f *finder) route(family string, words []string) (object, bool) {
	kind, prefix, with := words[0], words[1], pairs(words[2:])
	p, err := netip.ParsePrefix(prefix)
	ours := with["proto"] == "116" || slices.Contains(f.devices, with["dev"])
	if !ours || err != nil || p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() {
		return object{}, false
	}
	route, via, rest := prefix, "", ""
	if kind != "unicast" {
		route = kind + " " + prefix
	}
	if m := with["metric"]; m != "" {
		route += " metric " + m
	}
	for _, w := range []string{"via", "dev"} {
		if with[w] != "" {
			via += w + " " + with[w] + " "
		}
	}
	via += with["onlink"]
	for _, w := range []string{"proto", "scope", "src"} {
		if with[w] != "" && (w != "scope" || family != "-6") {
			rest += w + " " + with[w] + " "
		}
	}
	half := netip.PrefixFrom(p.Addr(), min(p.Bits()+1, p.Addr().BitLen()))
	o := object{name: fmt.Sprintf("route %s %s/%d dev %s", kind, f.label(p.Addr()), p.Bits(), with["dev"]),
		setters: routeSetters, scope: f.scopeOf(with["dev"], p.Addr()), words: map[string]string{"FAMILY": family,
			"ROUTE": route, "PREFIX": prefix, "VIA": via, "REST": rest, "HALF": half.String(), "DEV": with["dev"]}}
	return withUndo(o, "ip "+family+" route replace "+route+" "+via+" "+rest), true
}

// pairs reads words and their values; onlink is its own value.
func pairs(words []string) map[string]string {
	with := map[string]string{}
	for i := 0; i < len(words); i++ {
		if words[i] == "onlink" {
			with["onlink"] = "onlink "
			continue
		}
		if i+1 < len(words) {
			with[words[i]] = words[i+1]
			i++
		}
	}
	return with
}

// withUndo gives the setters that have none a command that takes back what they do.
func withUndo(o object, undo string) object {
	o.setters = slices.Clone(o.setters)
	for i := range o.setters {
		if o.setters[i].undo == "" {
			o.setters[i].undo = undo
		}
	}
	return o
}

func (f *finder) neighbours() error {
	var all []map[string]any
	if err := f.ask("ip -j neigh show nud permanent", &all); err != nil {
		return err
	}
	for _, e := range all {
		dev, dst, mac := fmt.Sprint(e["dev"]), fmt.Sprint(e["dst"]), fmt.Sprint(e["lladdr"])
		at, err := netip.ParseAddr(dst)
		if !overlay(dev) || err != nil {
			continue
		}
		f.add(withUndo(object{name: "neigh " + f.label(at) + " of " + dev, setters: neighSetters, report: e,
			scope: f.scopeOf(dev, at), words: map[string]string{"DEV": dev, "ENTRY": dst, "MAC": mac,
				"ENTRY9": at.Next().Next().String()}}, "ip neigh replace "+dst+" lladdr "+mac+" dev "+dev+" nud permanent"))
	}
	return nil
}

func (f *finder) fdb() error {
	var all []map[string]any
	if err := f.ask("bridge -j fdb show", &all); err != nil {
		return err
	}
	for _, e := range all {
		dev, dst, mac := fmt.Sprint(e["ifname"]), fmt.Sprint(e["dst"]), fmt.Sprint(e["mac"])
		at, err := netip.ParseAddr(dst)
		if !overlay(dev) || err != nil {
			continue
		}
		f.add(withUndo(object{name: "fdb " + dst + " of " + dev, setters: fdbSetters, report: e, scope: f.scopeOf(dev, at),
			words: map[string]string{"DEV": dev, "DST": dst, "MAC": mac}},
			"bridge fdb replace "+mac+" dev "+dev+" dst "+dst+" self permanent"))
	}
	return nil
}

// pods are what leads from the bridge to a pod: its neighbour entry, its port, and the port's FDB entry.
func (f *finder) pods() error {
	ports := slices.DeleteFunc(slices.Clone(f.devices), func(d string) bool { return overlay(d) || d == bridge })
	var learned []map[string]any
	if err := f.ask("bridge -j fdb show br "+bridge, &learned); err != nil {
		return err
	}
	for _, p := range f.node.Pods() {
		out, err := p.Exec(f.ctx, "sh", "-c", "ip -o link show eth0 | sed 's,.*link/ether \\([^ ]*\\).*,\\1,'")
		if err != nil {
			return err
		}
		mac, port := strings.TrimSpace(out), ""
		for _, e := range learned {
			if e["mac"] == mac {
				port = fmt.Sprint(e["ifname"])
			}
		}
		other := slices.IndexFunc(ports, func(d string) bool { return d != port })
		if port == "" || other < 0 {
			return fmt.Errorf("%s of %s has no port on %s", mac, p.ID(), bridge)
		}
		for _, addr := range p.Addrs {
			f.add(object{name: "pod " + f.label(addr), setters: podSetters, scope: scope{pod: p.ID(), anyFamily: true},
				words: map[string]string{"DEV": bridge, "POD": addr.String(), "MAC": mac, "PORT": port, "OTHER": ports[other]}})
		}
	}
	return nil
}
