package rules

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/internal/savedrule"
)

// Tables are those of iptables. iptables-nft keeps them in nf_tables by the same names.
var Tables = []string{"raw", "mangle", "nat", "filter", "security"}

// ParseSave reads the output of iptables-save. Chains with a policy are on hooks.
func ParseSave(family, text string) []Chain {
	var all []Chain
	tool := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family]
	for _, s := range savedrule.Parse(text) {
		c := Chain{Family: family, Table: s.Table, Name: s.Name, Tool: tool, Priority: 100 * slices.Index(Tables, s.Table)}
		if s.Policy != "" {
			c.Hook, c.Policy = strings.ToLower(s.Name), Verdict(strings.ToLower(s.Policy))
		}
		for _, line := range s.Rules {
			r := parseRule(line.Words[2:])
			r.Chain, r.Text, r.Delete = s.Name, line.Text, line.Delete(tool, s.Table)
			c.Rules = append(c.Rules, r)
		}
		all = append(all, c)
	}
	return all
}

// switches are the words that take no value, and details the words whose value does not matter here.
var (
	switches = []string{"--random-fully", "--random", "--persistent"}
	details  = []string{"--reject-with", "--to-source", "--to-ports", "--log-prefix", "--log-level"}
)

// options are the words that take a value. They report whether they understood it.
var options = map[string]func(r *Rule, value string, not bool) bool{
	"-s":      func(r *Rule, value string, not bool) bool { r.Src = match(value, not); return true },
	"-d":      func(r *Rule, value string, not bool) bool { r.Dst = match(value, not); return true },
	"-i":      func(r *Rule, value string, not bool) bool { r.In = DevMatch{value, not}; return true },
	"-o":      func(r *Rule, value string, not bool) bool { r.Out = DevMatch{value, not}; return true },
	"-p":      func(r *Rule, value string, not bool) bool { r.Proto = Protocol(value); return !not },
	"-j":      func(r *Rule, value string, _ bool) bool { setTarget(r, value, Jump); return true },
	"-g":      func(r *Rule, value string, _ bool) bool { setTarget(r, value, Goto); return true },
	"--state": setState, "--ctstate": setState,
	"-m": func(_ *Rule, value string, _ bool) bool {
		return slices.Contains([]string{"comment", "tcp", "udp", "conntrack", "state", "mark", "connmark", "multiport", "addrtype"}, value)
	},
	"--dport": setPorts, "--dports": setPorts,
	"--comment": func(r *Rule, value string, _ bool) bool { r.Comment = value; return true },
	"--dst-type": func(r *Rule, value string, not bool) bool {
		r.DstType = TypeMatch{strings.ToLower(value), not}
		return true
	},
	"--mark": func(_ *Rule, value string, not bool) bool { // "0x4000/0x4000"; packets that are tried have the mark 0
		mark, _, _ := strings.Cut(value, "/")
		n, err := strconv.ParseUint(mark, 0, 32)
		return err == nil && (n == 0) != not
	},
}

// setState reads "RELATED,ESTABLISHED". iptables allows one such condition in a rule for each of two extensions.
func setState(r *Rule, value string, not bool) bool {
	isFirst := len(r.State.Any) == 0
	r.State = StateMatch{strings.Split(strings.ToLower(value), ","), not}
	return isFirst
}

// setPorts reads "80", "1024:65535" or "53,80:90".
func setPorts(r *Rule, value string, not bool) bool {
	for item := range strings.SplitSeq(value, ",") {
		from, to, isRange := strings.Cut(item, ":")
		first, err := strconv.Atoi(from)
		last := first
		if isRange && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil {
			return false
		}
		r.DPorts = append(r.DPorts, [2]int{first, last})
	}
	return !not
}

// parseRule reads the words of one rule. What it does not understand becomes a condition that never holds.
func parseRule(words []string) Rule {
	var r Rule
	for i := 0; i < len(words); i++ {
		not := words[i] == "!"
		if not {
			i++
		}
		if i == len(words) || slices.Contains(switches, words[i]) {
			continue
		}
		word, value := words[i], ""
		if i++; i < len(words) {
			value = words[i]
		}
		set := options[word]
		if !slices.Contains(details, word) && (set == nil || !set(&r, value, not)) {
			r.UnknownIf = word + " " + value
		}
	}
	return r
}

func match(text string, not bool) Match {
	m := Match{Not: not}
	for _, t := range strings.Split(text, ",") {
		p, err := netip.ParsePrefix(t)
		if a, isAddr := netip.ParseAddr(t); isAddr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err == nil {
			m.Prefixes = append(m.Prefixes, p.Masked())
		}
	}
	return m
}

// setTarget sets what a rule's target does; a target that is none of iptables' own is a chain.
func setTarget(r *Rule, target string, jump Verdict) {
	switch target {
	case "ACCEPT", "DROP", "REJECT", "RETURN", "MASQUERADE":
		r.Verdict = Verdict(strings.ToLower(target))
	case "SNAT", "NETMAP":
		r.Verdict = Masquerade
	case "LOG", "MARK", "CONNMARK", "NFLOG", "TCPMSS", "CT", "NOTRACK", "TRACE", "CHECKSUM":
	default:
		r.Verdict, r.Target = jump, target
	}
}
