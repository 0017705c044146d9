package ruletrace

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/internal/savedrule"
)

// legacyRules are the rules of legacy tables (x_tables) of one family at some time. Such tables have no trace that a
// program could read, only counters, which count other packets too.
type legacyRules struct {
	family, tool string
	chains       []savedrule.Chain
}

// legacyKind is a family of legacy tables.
type legacyKind struct {
	tool   string
	family string
	tables func() []string // that exist in the calling thread's namespace
	list   []string        // arguments that list a table with counters
	save   bool            // it is the program that saves which lists
}

var legacyKinds = []legacyKind{
	{"iptables", "ip", listedIn("ip_tables_names"), []string{"-c"}, true},
	{"ip6tables", "ip6", listedIn("ip6_tables_names"), []string{"-c"}, true},
	{"arptables", "arp", listedIn("arp_tables_names"), []string{"-L", "-n", "-v"}, false},
	{"ebtables", "bridge", bridgeTables, []string{"-L", "--Lc"}, false},
}

// listedIn returns a function that reads the names of tables from a file, which the kernel has if it has such tables.
func listedIn(file string) func() []string {
	return func() []string {
		names, _ := os.ReadFile("/proc/thread-self/net/" + file)
		return strings.Fields(string(names))
	}
}

// bridgeTables returns the tables whose modules are loaded: the kernel has no list of those of a namespace. Listing one
// makes it, empty, if the namespace has none.
func bridgeTables() []string {
	modules, _ := os.ReadFile("/proc/modules")
	var tables []string
	for line := range strings.Lines(string(modules)) {
		module, _, _ := strings.Cut(line, " ")
		if table, ok := strings.CutPrefix(module, "ebtable_"); ok {
			tables = append(tables, table)
		}
	}
	return tables
}

// readLegacy reads all legacy tables of the calling thread's namespace. It starts no process where there are none,
// which would also make them.
func readLegacy() (all []legacyRules, errs []error) {
	for _, k := range legacyKinds {
		tables := k.tables()
		if len(tables) == 0 {
			continue
		}
		l, err := k.read(tables)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, l)
	}
	return all, errs
}

// read reads rules and counters with the legacy variant of the tool.
func (k legacyKind) read(tables []string) (legacyRules, error) {
	tools := []string{k.tool + "-legacy", k.tool}
	i := slices.IndexFunc(tools, func(tool string) bool { return isVariant(tool, false) })
	if i < 0 {
		return legacyRules{}, fmt.Errorf("read the legacy tables %q: there is no legacy variant of %s", tables, k.tool)
	}
	l := legacyRules{family: k.family, tool: tools[i]}
	if k.save {
		out, err := exec.Command(l.tool+"-save", k.list...).Output()
		if err != nil {
			return l, fmt.Errorf("read the legacy tables with %s-save: %w", l.tool, err)
		}
		l.chains = savedrule.Parse(string(out))
		return l, nil
	}
	for _, table := range tables {
		out, err := exec.Command(l.tool, append([]string{"-t", table}, k.list...)...).Output()
		if err != nil {
			return l, fmt.Errorf("read the legacy table %s with %s: %w", table, l.tool, err)
		}
		for _, c := range parseListing(string(out)) {
			c.Table = table
			l.chains = append(l.chains, c)
		}
	}
	return l, nil
}

// legacyHits returns the rules and policies that packets met since tables were read.
func legacyHits(before []legacyRules) []locate.Hit {
	if before == nil {
		return nil
	}
	now, _ := readLegacy()
	var hits []locate.Hit
	for _, l := range now {
		i := slices.IndexFunc(before, func(b legacyRules) bool { return b.family == l.family })
		if i >= 0 {
			hits = append(hits, l.since(before[i])...)
		}
	}
	return hits
}

func (l legacyRules) since(before legacyRules) []locate.Hit {
	var hits []locate.Hit
	for _, c := range l.chains {
		at := slices.IndexFunc(before.chains, func(b savedrule.Chain) bool { return b.Table == c.Table && b.Name == c.Name })
		if at < 0 {
			continue
		}
		old := before.chains[at]
		place := locate.Hit{Family: l.family, Counted: true}
		if c.Policy != "" {
			place.Hook = strings.ToLower(c.Name)
		}
		for i, r := range c.Rules {
			h := place
			same := i < len(old.Rules) && old.Rules[i].Text == r.Text
			if same && r.Packets > old.Rules[i].Packets && act(&h, r) {
				h.Object = ruleObject(l.tool, c, r)
				hits = append(hits, h)
			}
		}
		if c.Policy == "DROP" && c.Packets > old.Packets {
			h := place
			h.Object, h.Verdict, h.Stops = policyObject(l.tool, c), "policy drop", true
			hits = append(hits, h)
		}
	}
	return hits
}

// act sets what a rule does, and reports whether it stops or rewrites packets.
func act(h *locate.Hit, r savedrule.Rule) bool {
	i := slices.Index(r.Words, "-j")
	if i < 0 || i+1 == len(r.Words) {
		return false
	}
	target, options := r.Words[i+1], strings.Join(r.Words[i+1:], " ")
	h.Verdict = strings.ToLower(target)
	switch {
	case target == "DROP" || target == "REJECT":
		h.Stops = true
	case target == "NFQUEUE":
		h.Verdict, h.Stops = "queue", unheard(r.Words[i+2:])
	case target == "TEE":
		h.Verdict, h.Rewrote, h.Effect.Copies = "dup", Copied, true
	case slices.Contains(harmless, target) || targets[target] == nil:
		return false // it may be a chain
	default:
		h.Verdict, h.Rewrote = "continue", options
		h.Effect = locate.Effect{Source: target == "SNAT" || target == "MASQUERADE", Marks: target == "mark",
			To: destination(r.Words[i+2:])}
	}
	return true
}

// destination returns the first destination that a target DNAT gives packets; the zero value: none, or one of its own.
func destination(options []string) (to netip.AddrPort) {
	i := slices.Index(options, "--to-destination")
	if i < 0 || i+1 >= len(options) {
		return to
	}
	if to, err := netip.ParseAddrPort(options[i+1]); err == nil {
		return to
	}
	if a, err := netip.ParseAddr(options[i+1]); err == nil {
		to = netip.AddrPortFrom(a, 0)
	}
	return to
}

// unheard reports whether nobody listens to the queue of a target NFQUEUE.
func unheard(options []string) bool {
	number := 0
	if i := slices.Index(options, "--queue-num"); i >= 0 && i+1 < len(options) {
		number, _ = strconv.Atoi(options[i+1])
	}
	return !slices.Contains(options, "--queue-bypass") && !readQueues()[uint16(number)]
}
