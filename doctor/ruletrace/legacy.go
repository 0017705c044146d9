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
	family string
	name   string
	tool   string
	chains []savedChain
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
func readLegacy() (tables []legacyTable, errs []error) {
	for _, k := range legacyKinds {
		for _, name := range k.tables() {
			t := legacyTable{tool: k.tool, family: k.family, name: name}
			if err := t.read(k); err != nil {
				errs = append(errs, err)
				continue
			}
			tables = append(tables, t)
		}
	}
	return tables, errs
}

// read reads rules and counters with the legacy variant of the tool.
func (t *legacyTable) read(k legacyKind) error {
	for _, tool := range []string{k.tool + "-legacy", k.tool} {
		if _, err := exec.LookPath(tool); err != nil || !isVariant(tool, false) {
			continue
		}
		t.tool = tool
		program, parse := tool, parseListing
		if k.save {
			program, parse = tool+"-save", parseSave
		}
		out, err := exec.Command(program, append([]string{"-t", t.name}, k.list...)...).Output()
		if err != nil {
			return fmt.Errorf("read the legacy table %s with %s: %w", t.name, tool, err)
		}
		t.chains = parse(string(out))
		for i := range t.chains {
			t.chains[i].table = t.name
		}
		return nil
	}
	return fmt.Errorf("read the legacy table %s: there is no legacy variant of %s", t.name, k.tool)
}

// legacyHits returns the rules and policies that packets met since tables were read.
func legacyHits(before []legacyTable) []Hit {
	if before == nil {
		return nil
	}
	now, _ := readLegacy()
	var hits []Hit
	for _, t := range now {
		i := slices.IndexFunc(before, func(b legacyTable) bool { return b.family == t.family && b.name == t.name })
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
	h.Family = t.family
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
	case slices.Contains(harmless, target) || targets[target] == nil:
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
