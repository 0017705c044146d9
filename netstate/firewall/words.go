package firewall

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// render is r as arguments of iptables, in the order in which iptables -S prints them.
func render(r netstate.Rule) (string, error) {
	if (r.Src.IsValid() && r.NotSrc.IsValid()) || (r.Dst.IsValid() && r.NotDst.IsValid()) || r.Extra != "" {
		return "", fmt.Errorf("rule %q: want one source, one destination and no observed extras", r)
	}
	var w []string
	put := func(on bool, words ...string) {
		if on {
			w = append(w, words...)
		}
	}
	put(r.Src.IsValid(), "-s", r.Src.String())
	put(r.NotSrc.IsValid(), "!", "-s", r.NotSrc.String())
	put(r.Dst.IsValid(), "-d", r.Dst.String())
	put(r.NotDst.IsValid(), "!", "-d", r.NotDst.String())
	put(r.In != "", "-i", r.In)
	put(r.NotOut != "", "!", "-o", r.NotOut)
	put(r.Packet.Protocol != 0, "-p", strconv.Itoa(int(r.Packet.Protocol)))
	put(r.Packet.Port != 0, "-m", "udp", "--dport", strconv.Itoa(int(r.Packet.Port)))
	put(r.Mark != 0, "-m", "mark", "--mark", fmt.Sprintf("%#x/%#x", r.Mark, r.Mark))
	put(r.Local, "-m", "addrtype", "--src-type", "LOCAL")
	switch r.Verdict {
	case netstate.Accept:
		put(true, "-j", "ACCEPT")
	case netstate.Drop:
		put(true, "-j", "DROP")
	case netstate.Return:
		put(true, "-j", "RETURN")
	case netstate.Masquerade:
		put(true, "-j", "MASQUERADE")
	case netstate.MasqueradeRandom:
		put(true, "-j", "MASQUERADE", "--random-fully")
	default:
		return "", fmt.Errorf("rule verdict %d: want accept, drop, return or masquerade", r.Verdict)
	}
	return strings.Join(w, " "), nil
}

// parse reads back what iptables -S prints after "-A CHAIN". Words that render does not write go into Extra.
func parse(words []string) netstate.Rule {
	p := parser{words: words}
	for len(p.words) > 0 {
		start := p.words
		if !p.condition() {
			p.words = start[1:]
			p.rule.Extra = strings.TrimSpace(p.rule.Extra + " " + quote(start[0]))
		}
	}
	return visible(p.rule)
}

type parser struct {
	words []string
	rule  netstate.Rule
}

// next takes the words want, of which "*" stands for any one; it gives that one.
func (p *parser) next(want ...string) (string, bool) {
	if len(p.words) < len(want) {
		return "", false
	}
	any := ""
	for i, w := range want {
		if w == "*" {
			any = p.words[i]
		} else if w != p.words[i] {
			return "", false
		}
	}
	p.words = p.words[len(want):]
	return any, true
}

// protocols are those of our rules by the names in /etc/protocols, and by number, which is what iptables prints where
// there is no such file.
var protocols = map[string]uint8{
	"udp": netstate.UDP, "17": netstate.UDP, "ipencap": netstate.IPv4InIP, "4": netstate.IPv4InIP,
	"ipv6": netstate.IPv6InIP, "41": netstate.IPv6InIP,
}

// condition reads one condition or the target, and says whether it was one of ours.
func (p *parser) condition() bool {
	r := &p.rule
	for _, match := range []struct {
		flags []string
		to    *netip.Prefix
	}{
		{[]string{"-s", "*"}, &r.Src}, {[]string{"!", "-s", "*"}, &r.NotSrc},
		{[]string{"-d", "*"}, &r.Dst}, {[]string{"!", "-d", "*"}, &r.NotDst},
	} {
		if s, ok := p.next(match.flags...); ok {
			prefix, err := netip.ParsePrefix(s)
			*match.to = prefix
			return err == nil
		}
	}
	if s, ok := p.next("-i", "*"); ok {
		r.In = s
		return !strings.HasSuffix(s, "+")
	}
	if s, ok := p.next("-p", "*"); ok {
		r.Packet.Protocol = protocols[s]
		return protocols[s] != 0
	}
	if s, ok := p.next("-m", "udp", "--dport", "*"); ok {
		port, err := strconv.ParseUint(s, 10, 16)
		r.Packet.Port = uint16(port)
		return err == nil && r.Packet.Protocol == netstate.UDP
	}
	if s, ok := p.next("!", "-o", "*"); ok {
		r.NotOut = s
		return !strings.HasSuffix(s, "+")
	}
	if s, ok := p.next("-m", "mark", "--mark", "*"); ok {
		value, bits, _ := strings.Cut(s, "/")
		mark, err := strconv.ParseUint(value, 0, 32)
		r.Mark = uint32(mark)
		return err == nil && value == bits
	}
	if _, ok := p.next("-m", "addrtype", "--src-type", "LOCAL"); ok {
		r.Local = true
		return true
	}
	return p.target()
}

func (p *parser) target() bool {
	for _, t := range []struct {
		words   []string
		verdict netstate.Verdict
	}{
		{[]string{"-j", "ACCEPT"}, netstate.Accept},
		{[]string{"-j", "DROP"}, netstate.Drop},
		{[]string{"-j", "RETURN"}, netstate.Return},
		{[]string{"-j", "MASQUERADE", "--random-fully"}, netstate.MasqueradeRandom},
		{[]string{"-j", "MASQUERADE"}, netstate.Masquerade},
	} {
		if _, ok := p.next(t.words...); ok {
			p.rule.Verdict = t.verdict
			return true
		}
	}
	return false
}

// split separates a line of iptables -S into words; words with spaces are in double quotes, and a quote or
// backslash in them has a backslash.
func split(line string) []string {
	var words []string
	var word strings.Builder
	quoted, escaped, open := false, false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\':
			escaped, open = true, true
		case c == '"':
			quoted, open = !quoted, true
		case c == ' ' && !quoted:
			if open {
				words = append(words, word.String())
				word.Reset()
			}
			open = false
		default:
			word.WriteRune(c)
			open = true
		}
	}
	if open {
		words = append(words, word.String())
	}
	return words
}

func quote(s string) string {
	if strings.ContainsAny(s, " \"") {
		return strconv.Quote(s)
	}
	return s
}
