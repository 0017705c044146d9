package ruletrace

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// legacyTable is a legacy table (x_tables) at some time. Such tables have no trace that a program could read, only
// counters, which count other packets too.
type legacyTable struct {
	kind   legacyKind
	name   string
	tool   string
	chains []savedChain
}

// legacyKind is a family of legacy tables.
type legacyKind struct {
	tool  string
	names string // the file in /proc/net that lists the tables that exist
	ip    bool
}

var legacyKinds = []legacyKind{
	{"iptables", "ip_tables_names", true}, {"ip6tables", "ip6_tables_names", true}, {"arptables", "arp_tables_names", false},
}

// readLegacy reads all legacy tables of the calling thread's namespace. It starts no process where there are none,
// which would also make them.
func readLegacy() (tables []legacyTable, errs []error) {
	for _, k := range legacyKinds {
		names, err := os.ReadFile("/proc/thread-self/net/" + k.names)
		if err != nil { // the kernel has none of this kind
			continue
		}
		for _, name := range strings.Fields(string(names)) {
			t := legacyTable{kind: k, name: name}
			if err := t.read(); err != nil {
				errs = append(errs, err)
				continue
			}
			tables = append(tables, t)
		}
	}
	return tables, errs
}

// read reads rules and counters with the legacy variant of the tool.
func (t *legacyTable) read() error {
	for _, tool := range []string{t.kind.tool + "-legacy", t.kind.tool} {
		if _, err := exec.LookPath(tool); err != nil || !isVariant(tool, false) {
			continue
		}
		t.tool = tool
		command, parse := exec.Command(tool+"-save", "-c", "-t", t.name), parseSave
		if !t.kind.ip {
			command, parse = exec.Command(tool, "-t", t.name, "-L", "-n", "-v"), parseListing
		}
		out, err := command.Output()
		if err != nil {
			return fmt.Errorf("read the legacy table %s with %s: %w", t.name, tool, err)
		}
		t.chains = parse(string(out))
		for i := range t.chains {
			t.chains[i].table = t.name
		}
		return nil
	}
	return fmt.Errorf("read the legacy table %s: there is no legacy variant of %s", t.name, t.kind.tool)
}

// legacyHits returns the rules and policies that packets met since tables were read.
func legacyHits(before []legacyTable) []Hit {
	if before == nil {
		return nil
	}
	now, _ := readLegacy()
	var hits []Hit
	for _, t := range now {
		i := slices.IndexFunc(before, func(b legacyTable) bool { return b.kind == t.kind && b.name == t.name })
		if i >= 0 {
			hits = append(hits, t.since(before[i])...)
		}
	}
	return hits
}

func (t *legacyTable) since(before legacyTable) []Hit {
	var hits []Hit
	for _, c := range t.chains {
		old := saved{chains: before.chains}.chain(c.name)
		if old == nil {
			continue
		}
		for i, r := range c.rules {
			h := Hit{Object: c.object(t.tool, r)}
			same := i < len(old.rules) && old.rules[i].text == r.text
			if same && r.packets > old.rules[i].packets && h.act(r) {
				hits = append(hits, t.place(h, c))
			}
		}
		if c.policy == "DROP" && c.packets > old.packets {
			hits = append(hits, t.place(Hit{Object: c.policyObject(t.tool), Verdict: "policy drop", Stops: true}, c))
		}
	}
	return hits
}

// place adds where the rule is.
func (t *legacyTable) place(h Hit, c savedChain) Hit {
	h.Family = map[string]string{"iptables": "ip", "ip6tables": "ip6", "arptables": "arp"}[t.kind.tool]
	if c.policy != "" {
		h.Hook = strings.ToLower(c.name)
	}
	return h
}

// act sets what a rule does, and reports whether it stops or rewrites packets.
func (h *Hit) act(r savedRule) bool {
	i := slices.Index(r.words, "-j")
	if i < 0 || i+1 == len(r.words) {
		return false
	}
	target, options := r.words[i+1], strings.Join(r.words[i+1:], " ")
	h.Verdict = strings.ToLower(target)
	switch {
	case target == "DROP" || target == "REJECT":
		h.Stops = true
	case target == "NFQUEUE":
		h.Verdict, h.Stops = "queue", unheard(r.words[i+2:])
	case slices.Contains(harmless, target) || targets[target] == nil && target != "TCPMSS":
		return false // it may be a chain
	default:
		h.Verdict, h.Rewrote = "continue", options
	}
	return true
}

// unheard reports whether nobody listens to the queue of a target NFQUEUE.
func unheard(options []string) bool {
	number := 0
	if i := slices.Index(options, "--queue-num"); i >= 0 && i+1 < len(options) {
		number, _ = strconv.Atoi(options[i+1])
	}
	return !slices.Contains(options, "--queue-bypass") && !readQueues()[uint16(number)]
}
