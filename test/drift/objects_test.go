//go:build soak

package drift

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
)

// object is something of the agent's: the words that setters' commands hold for it, and which setters alter it.
type object struct {
	name    string
	words   map[string]string
	report  map[string]any // JSON fields, for OLD
	setters []setter
}

// move is one alteration: a shell command on the node, and the one that takes it back.
type move struct{ object, attr, do, undo string }

func (m move) String() string { return fmt.Sprintf("%s of %s: %s", m.attr, m.object, m.do) }

// draw returns a random move of a random object.
func draw(random *rand.Rand, objects []object) move {
	kinds := map[string][]object{}
	var names []string
	for _, o := range objects { // each kind as often as the others, however many objects it has
		kind, _, _ := strings.Cut(o.name, " ")
		if kinds[kind] == nil {
			names = append(names, kind)
		}
		kinds[kind] = append(kinds[kind], o)
	}
	of := kinds[names[random.IntN(len(names))]]
	o := of[random.IntN(len(of))]
	s := o.setters[random.IntN(len(o.setters))]
	values := strings.Fields(s.values)
	words := map[string]string{"VALUE": values[random.IntN(len(values))], "OLD": "-"}
	if old, ok := o.report[s.field]; ok {
		words["OLD"] = strings.NewReplacer("true", "1", "false", "0").Replace(fmt.Sprint(old))
	}
	for k, v := range o.words {
		words[k] = v
	}
	m := move{object: o.name, attr: s.attr, do: fill(s.command, words)}
	undo := s.undo
	if undo == "" && words["OLD"] != "-" {
		undo = strings.ReplaceAll(s.command, "VALUE", "OLD")
	}
	if m.undo = fill(undo, words); m.undo == "" {
		m.undo = "true"
	}
	return m
}

var word = regexp.MustCompile(`\b[A-Z]{2,}\b`)

func fill(command string, words map[string]string) string {
	return word.ReplaceAllStringFunc(command, func(w string) string {
		if v, ok := words[w]; ok {
			return v
		}
		return w
	})
}

// finder lists the objects of a node.
type finder struct {
	ctx     context.Context
	node    *lab.Node
	devices []string // the overlay's, then the bridge, then the pods' ports
	objects []object
}

func (f *finder) ask(command string, into any) error {
	out, err := f.node.Exec(f.ctx, "sh", "-c", command)
	if err != nil || strings.TrimSpace(out) == "" {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// find returns all objects of the agent's on a node, and the node's devices that are ours.
func find(ctx context.Context, n *lab.Node) ([]object, []string, error) {
	f := finder{ctx: ctx, node: n}
	for _, step := range []func() error{f.links, f.addrs, f.routes, f.neighbours, f.fdb, f.pods, f.sysctls, f.nft, f.iptables, f.files} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	return f.objects, f.devices, nil
}

const bridge = "cni0"

func overlay(dev string) bool { return strings.HasPrefix(dev, "flannel") }

func (f *finder) links() error {
	var links []map[string]any
	if err := f.ask("ip -d -j link show", &links); err != nil {
		return err
	}
	var tunnels, ports []string
	for _, l := range links {
		dev, _ := l["ifname"].(string)
		o := object{name: "link " + dev, words: map[string]string{"DEV": dev}, report: l}
		info, _ := l["linkinfo"].(map[string]any)
		for _, part := range []string{"info_data", "info_slave_data"} {
			data, _ := info[part].(map[string]any)
			for k, v := range data {
				if _, taken := o.report[k]; !taken {
					o.report[k] = v
				}
			}
		}
		switch {
		case overlay(dev):
			tunnels = append(tunnels, dev)
			o.setters = slices.Concat(linkSetters, vxlanOf(info))
		case dev == bridge:
			o.setters = slices.Concat(linkSetters, bridgeSetters)
		case l["master"] == bridge:
			ports = append(ports, dev)
			o.name, o.setters = "port "+dev, slices.Concat(linkSetters, portSetters)
		default:
			continue
		}
		f.objects = append(f.objects, o)
	}
	f.devices = slices.Concat(tunnels, []string{bridge}, ports)
	return nil
}

func vxlanOf(info map[string]any) []setter {
	if info["info_kind"] == "vxlan" {
		return vxlanSetters
	}
	return nil
}

func (f *finder) addrs() error {
	var links []struct {
		Name  string           `json:"ifname"`
		Addrs []map[string]any `json:"addr_info"`
	}
	if err := f.ask("ip -j addr show", &links); err != nil {
		return err
	}
	for _, l := range links {
		for _, a := range l.Addrs {
			addr, err := netip.ParseAddr(fmt.Sprint(a["local"]))
			if err != nil || !overlay(l.Name) && l.Name != bridge || addr.IsLinkLocalUnicast() {
				continue
			}
			next := addr.Next()
			for range 7 {
				next = next.Next()
			}
			f.objects = append(f.objects, object{name: fmt.Sprintf("addr %s of %s", addr, l.Name), setters: addrSetters, report: a,
				words: map[string]string{"DEV": l.Name, "ADDR": fmt.Sprintf("%s/%v", addr, a["prefixlen"]), "NEXT": fmt.Sprintf("%s/%v", next, a["prefixlen"])}})
		}
	}
	return nil
}

func (f *finder) routes() error {
	for _, family := range []string{"-4", "-6"} {
		out, err := f.node.Exec(f.ctx, "ip", "-d", family, "route", "show", "table", "main")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if o, ok := f.route(family, strings.Fields(line)); ok {
				f.objects = append(f.objects, o)
			}
		}
	}
	return nil
}

// route reads a line of "ip -d route": a type, a prefix, and pairs of words.
func (f *finder) route(family string, words []string) (object, bool) {
	kind, prefix, pairs := words[0], words[1], words[2:]
	with := map[string]string{}
	onlink := ""
	for i := 0; i < len(pairs); i++ {
		if pairs[i] == "onlink" {
			onlink = " onlink"
			continue
		}
		if i+1 < len(pairs) {
			with[pairs[i]] = pairs[i+1]
			i++
		}
	}
	ours := with["proto"] == "116" || slices.Contains(f.devices, with["dev"])
	p, err := netip.ParsePrefix(prefix)
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
	for _, w := range []string{"proto", "scope", "src"} {
		if with[w] != "" && (w != "scope" || family != "-6") {
			rest += w + " " + with[w] + " "
		}
	}
	half := netip.PrefixFrom(p.Addr(), min(p.Bits()+1, p.Addr().BitLen()))
	o := object{name: "route " + strings.Join(words[:2], " ") + " " + via, setters: routeSetters,
		words: map[string]string{"FAMILY": family, "ROUTE": route, "PREFIX": prefix, "VIA": via + onlink, "REST": rest, "HALF": half.String()}}
	return withUndo(o, "ip "+family+" route replace "+route+" "+via+onlink+" "+rest), true
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
		if !overlay(dev) {
			continue
		}
		f.objects = append(f.objects, withUndo(object{name: "neigh " + dst + " of " + dev, setters: neighSetters, report: e,
			words: map[string]string{"DEV": dev, "ENTRY": dst, "MAC": mac}}, "ip neigh replace "+dst+" lladdr "+mac+" dev "+dev+" nud permanent"))
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
		if !overlay(dev) || e["dst"] == nil {
			continue
		}
		f.objects = append(f.objects, withUndo(object{name: "fdb " + mac + " of " + dev, setters: fdbSetters, report: e,
			words: map[string]string{"DEV": dev, "DST": dst, "MAC": mac}}, "bridge fdb replace "+mac+" dev "+dev+" dst "+dst+" self permanent"))
	}
	return nil
}

func (f *finder) pods() error {
	ports := slices.DeleteFunc(slices.Clone(f.devices), func(d string) bool { return overlay(d) || d == bridge })
	var learned []map[string]any
	if err := f.ask("bridge -j fdb show br "+bridge, &learned); err != nil {
		return err
	}
	for _, p := range f.node.Pods() {
		for _, addr := range p.Addrs {
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
				continue
			}
			f.objects = append(f.objects, object{name: "pod " + p.ID() + " " + addr.String(), setters: podSetters,
				words: map[string]string{"DEV": bridge, "POD": addr.String(), "MAC": mac, "PORT": port, "OTHER": ports[other]}})
		}
	}
	return nil
}

// sysctls are objects of one setter each, whose value is another number than the one that is set.
func (f *finder) sysctls() error {
	out, err := f.node.Exec(f.ctx, "sh", "-c", sysctlFiles(f.devices))
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		path, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		write := "echo VALUE >/proc/sys/net/" + path
		f.objects = append(f.objects, object{name: "sysctl " + path, words: map[string]string{},
			setters: []setter{{attr: "sysctl " + filepath.Base(path), command: write, values: otherValues(value), undo: "echo '" + value + "' >/proc/sys/net/" + path}}})
	}
	return nil
}

func otherValues(value string) string {
	others := slices.DeleteFunc([]string{"0", "1", "2", "8", "1000"}, func(v string) bool { return v == value })
	return strings.Join(others, " ")
}

func (f *finder) nft() error {
	var all struct {
		Objects []map[string]map[string]any `json:"nftables"`
	}
	if err := f.ask("nft -j list ruleset", &all); err != nil {
		return err
	}
	handles := map[string]string{}
	for _, o := range all.Objects {
		if r := o["rule"]; r != nil {
			handles[fmt.Sprint(r["family"], r["table"], r["chain"])] = fmt.Sprintf("%.0f", r["handle"])
		}
	}
	for _, o := range all.Objects {
		c := o["chain"]
		if c == nil || !strings.HasPrefix(fmt.Sprint(c["table"]), "flannel") {
			continue
		}
		family, table, chain := fmt.Sprint(c["family"]), fmt.Sprint(c["table"]), fmt.Sprint(c["name"])
		f.objects = append(f.objects, object{name: "nft " + family + " " + table + " " + chain, setters: nftSetters, report: c,
			words: map[string]string{"FAMILY": family, "TABLE": table, "CHAIN": chain, "HANDLE": handles[fmt.Sprint(family, table, chain)]}})
	}
	return nil
}

func (f *finder) iptables() error {
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"filter", "nat", "mangle"} {
			out, err := f.node.Exec(f.ctx, "sh", "-c", program+" -t "+table+" -S 2>/dev/null || true")
			if err != nil {
				return err
			}
			for line := range strings.Lines(out) {
				chain, ok := strings.CutPrefix(strings.TrimSpace(line), "-N ")
				if ok && (strings.HasPrefix(chain, "FLANNEL") || strings.HasPrefix(chain, "TWILL")) {
					f.objects = append(f.objects, object{name: "iptables " + program + " " + table + " " + chain, setters: chainSetters,
						words: map[string]string{"PROGRAM": program, "TABLE": table, "CHAIN": chain}})
				}
			}
		}
	}
	return nil
}

func (f *finder) files() error {
	for _, path := range files(f.node) {
		f.objects = append(f.objects, object{name: "file " + filepath.Base(path), setters: fileSetters, words: map[string]string{"PATH": path}})
	}
	return nil
}
