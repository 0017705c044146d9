package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// option is one condition of a rule, or its target, as iptables writes it.
type option struct {
	flag string // the words before the value
	// value returns the value, or "" if r does not have the option.
	value func(r *netstate.Rule) string
	// set reads the value into r. It reports whether value would return the same again.
	set func(r *netstate.Rule, value string) bool
}

// options are all that rules of ours have, in the order in which iptables -S prints them.
var options = []option{
	prefixOption("-s", func(r *netstate.Rule) *netip.Prefix { return &r.Src }),
	prefixOption("! -s", func(r *netstate.Rule) *netip.Prefix { return &r.NotSrc }),
	prefixOption("-d", func(r *netstate.Rule) *netip.Prefix { return &r.Dst }),
	prefixOption("! -d", func(r *netstate.Rule) *netip.Prefix { return &r.NotDst }),
	interfaceOption("-i", func(r *netstate.Rule) *string { return &r.In }),
	interfaceOption("-o", func(r *netstate.Rule) *string { return &r.Out }),
	interfaceOption("! -o", func(r *netstate.Rule) *string { return &r.NotOut }),
	{"-p", func(r *netstate.Rule) string { return number(r.Packet.Protocol) }, setProtocol},
	{"-m udp --dport", func(r *netstate.Rule) string { return number(r.Packet.Port) }, setPort},
	{"-m mark --mark", markValue, setMark},
	{"-m addrtype --src-type", localValue, func(r *netstate.Rule, value string) bool {
		r.Local = r.Local || value == "LOCAL"
		return value == "LOCAL"
	}},
	{"-j", func(r *netstate.Rule) string { return targets[r.Verdict] }, setTarget},
	{"", randomValue, func(r *netstate.Rule, value string) bool {
		if value != "--random-fully" || r.Verdict != netstate.Masquerade {
			return false
		}
		r.Verdict = netstate.MasqueradeRandom
		return true
	}},
}

func prefixOption(flag string, of func(*netstate.Rule) *netip.Prefix) option {
	value := func(r *netstate.Rule) string {
		if p := *of(r); p.IsValid() {
			return p.String()
		}
		return ""
	}
	return option{flag, value, func(r *netstate.Rule, value string) (ok bool) {
		p, err := netip.ParsePrefix(value)
		*of(r) = p
		return err == nil
	}}
}

func interfaceOption(flag string, of func(*netstate.Rule) *string) option {
	return option{flag, func(r *netstate.Rule) string { return *of(r) }, func(r *netstate.Rule, value string) bool {
		*of(r) = value
		return !strings.HasSuffix(value, "+")
	}}
}

func number[N uint8 | uint16](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}

// protocols are those of our rules by their names in /etc/protocols. Without that file iptables prints numbers.
var protocols = map[string]uint8{"udp": netstate.UDP, "ipencap": netstate.IPv4InIP, "ipv6": netstate.IPv6InIP}

func setProtocol(r *netstate.Rule, value string) bool {
	for name, p := range protocols {
		if value == name || value == number(p) {
			r.Packet.Protocol = p
			return true
		}
	}
	return false
}

func setPort(r *netstate.Rule, value string) bool {
	port, err := strconv.ParseUint(value, 10, 16)
	r.Packet.Port = uint16(port)
	return err == nil && r.Packet.Protocol == netstate.UDP
}

func markValue(r *netstate.Rule) string {
	if r.Mark == 0 {
		return ""
	}
	return fmt.Sprintf("%#x/%#[1]x", r.Mark)
}

func setMark(r *netstate.Rule, value string) bool {
	bits, mask, _ := strings.Cut(value, "/")
	mark, err := strconv.ParseUint(bits, 0, 32)
	r.Mark = uint32(mark)
	return err == nil && bits == mask
}

func localValue(r *netstate.Rule) string {
	if r.Local {
		return "LOCAL"
	}
	return ""
}

var targets = [...]string{
	netstate.None: "", netstate.Accept: "ACCEPT", netstate.Drop: "DROP", netstate.Return: "RETURN",
	netstate.Masquerade: "MASQUERADE", netstate.MasqueradeRandom: "MASQUERADE",
}

func setTarget(r *netstate.Rule, value string) bool {
	i := slices.Index(targets[:], value)
	if i > 0 {
		r.Verdict = netstate.Verdict(i)
	}
	return i > 0
}

func randomValue(r *netstate.Rule) string {
	if r.Verdict == netstate.MasqueradeRandom {
		return "--random-fully"
	}
	return ""
}

// render returns r as arguments of iptables.
func render(r netstate.Rule) (string, error) {
	twice := r.Src.IsValid() && r.NotSrc.IsValid() || r.Dst.IsValid() && r.NotDst.IsValid()
	if twice || r.Back != "" || r.Extra != "" || r.Verdict == netstate.None {
		return "", fmt.Errorf("rule %q: want one source, one destination, no way back, a verdict and no observed extras", r)
	}
	var words []string
	for _, o := range options {
		if value := o.value(&r); value != "" {
			words = append(words, strings.TrimSpace(o.flag+" "+value))
		}
	}
	return strings.Join(words, " "), nil
}

// parse reads a rule from the words that iptables -S prints after "-A CHAIN". Those that render does not write go
// into Extra.
func parse(words []string) netstate.Rule {
	var r netstate.Rule
	for len(words) > 0 {
		n := parseOption(&r, words)
		if n == 0 {
			r.Extra = strings.TrimSpace(r.Extra + " " + quote(words[0]))
			n = 1
		}
		words = words[n:]
	}
	return visible(r)
}

// parseOption reads the option at the beginning of words. It returns its length, or 0 if it is none of ours.
func parseOption(r *netstate.Rule, words []string) int {
	for _, o := range options {
		flag := strings.Fields(o.flag)
		n := len(flag)
		if n >= len(words) || !slices.Equal(flag, words[:n]) {
			continue
		}
		if !o.set(r, words[n]) {
			return 0
		}
		return n + 1
	}
	return 0
}

func quote(s string) string {
	if strings.ContainsAny(s, " \"") {
		return strconv.Quote(s)
	}
	return s
}
