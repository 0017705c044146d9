package facts

import (
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/doctor"
)

// chains reads all firewall rules of this namespace: iptables-save's, and nft's own tables. Programs that are not
// installed are named in unread.
func chains(ipv6 bool) (all []doctor.Chain, unread []string) {
	tools := map[string]string{"iptables-save": "ip"}
	if ipv6 {
		tools["ip6tables-save"] = "ip6"
	}
	saved := true
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		family, ok := tools[tool]
		if !ok {
			continue
		}
		out, err := exec.Command(tool).Output()
		if err != nil {
			saved, unread = false, append(unread, tool+": "+err.Error())
			continue
		}
		all = append(all, parseSave(family, string(out))...)
	}
	out, err := exec.Command("nft", "-j", "list", "ruleset").Output()
	if err != nil {
		return all, append(unread, "nft: "+err.Error())
	}
	native, err := parseNFT(out)
	if err != nil {
		unread = append(unread, err.Error())
	}
	for _, c := range native {
		if compat := saved && c.Family != "inet" && slices.Contains(tables, c.Table); !compat && !ours(c) {
			all = append(all, c)
		}
	}
	return all, unread
}

// tables are those of iptables, which iptables-nft keeps in nf_tables by the same names.
var tables = []string{"raw", "mangle", "nat", "filter", "security"}

// ours says whether a table is Twill's or flannel's: those are compared object by object, and not here.
func ours(c doctor.Chain) bool { return c.Table == "flannel-ipv4" || c.Table == "flannel-ipv6" }

// parseSave reads iptables-save's output. Its chains with a policy are the ones on hooks.
func parseSave(family, text string) []doctor.Chain {
	var all []doctor.Chain
	table, at := "", map[string]int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, at = line[1:], map[string]int{}
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			c := doctor.Chain{Family: family, Table: table, Name: name, Priority: 100 * slices.Index(tables, table)}
			if policy, _, _ := strings.Cut(rest, " "); policy != "-" {
				c.Hook, c.Policy = strings.ToLower(name), strings.ToLower(policy)
			}
			at[name] = len(all)
			all = append(all, c)
		case strings.HasPrefix(line, "-A "):
			words := splitWords(line)
			if i, ok := at[words[1]]; ok {
				all[i].Rules = append(all[i].Rules, parseRule(words[2:], line))
			}
		}
	}
	return all
}

// splitWords splits at spaces outside of double quotes.
func splitWords(line string) []string {
	quoted := false
	words := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	})
	for i, w := range words {
		words[i] = strings.Trim(w, `"`)
	}
	return words
}

// parseRule reads one rule's words. What it does not know is kept as a condition that never holds.
func parseRule(words []string, text string) doctor.Rule {
	r := doctor.Rule{Text: text}
	not := false
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch words[i] {
		case "!":
			not = true
			continue
		case "-s":
			r.Src = match(value, not)
		case "-d":
			r.Dst = match(value, not)
		case "-i":
			r.In = doctor.DevMatch{Name: value, Not: not}
		case "-o":
			r.Out = doctor.DevMatch{Name: value, Not: not}
		case "-p":
			r.Proto = value
			if not {
				r.UnknownIf = "! -p " + value
			}
		case "-m":
			if !slices.Contains([]string{"comment", "tcp", "udp", "conntrack", "state", "mark", "connmark"}, value) {
				r.UnknownIf = "-m " + value
			}
		case "--comment", "--reject-with", "--to-source", "--to-ports", "--log-prefix", "--log-level":
		case "--dport":
			r.DPort, _ = strconv.Atoi(value)
			if r.DPort == 0 || not {
				r.UnknownIf = "--dport " + value
			}
		case "--ctstate", "--state": // the packets that are tried are the first of their connection
			if strings.Contains(value, "NEW") == not {
				r.UnknownIf = words[i] + " " + value
			}
		case "--mark": // nobody has marked them either
			if wanted, ok := markOf(value); !ok || (wanted == 0) == not {
				r.UnknownIf = words[i] + " " + value
			}
		case "-j", "-g":
			verdict(&r, value, words[i] == "-g")
		case "--random-fully", "--random", "--persistent":
			continue
		default:
			r.UnknownIf = words[i]
		}
		not = false
		i++
	}
	return r
}

// markOf is the value of "0x4000/0x4000" or "1", which must be 0 for an unmarked packet whatever the mask is.
func markOf(text string) (uint64, bool) {
	value, _, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(value, 0, 32)
	return n, err == nil
}

func match(text string, not bool) doctor.Match {
	m := doctor.Match{Not: not}
	for _, t := range strings.Split(text, ",") {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			a, err := netip.ParseAddr(t)
			if err != nil {
				continue
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		m.Prefixes = append(m.Prefixes, p.Masked())
	}
	return m
}

// verdict sets what a target does; an unknown target of a user chain is a jump.
func verdict(r *doctor.Rule, target string, jump bool) {
	switch target {
	case "ACCEPT", "DROP", "REJECT", "RETURN", "MASQUERADE":
		r.Verdict = strings.ToLower(target)
	case "SNAT", "NETMAP":
		r.Verdict = "masquerade"
	case "LOG", "MARK", "CONNMARK", "NFLOG", "TCPMSS", "CT", "NOTRACK", "TRACE", "CHECKSUM":
	default:
		r.Verdict, r.Target = "jump", target
		if jump {
			r.Verdict = "goto"
		}
	}
}
