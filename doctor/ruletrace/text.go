package ruletrace

import (
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/internal/shell"
	"github.com/twill-net/twill/netstate/nfnl"
)

// book gives rules the texts and commands of their tools. It must be used in their namespace.
type book struct {
	set     ruleset
	devices map[uint32]string
	listed  map[nfnl.Place]map[uint64]string // by handle
	saved   map[string]saved                 // by nf_tables' family and table
}

func newBook(set ruleset) *book {
	b := &book{set, map[uint32]string{}, map[nfnl.Place]map[uint64]string{}, map[string]saved{}}
	links, _ := net.Interfaces() // without, devices have no names
	for _, l := range links {
		b.devices[uint32(l.Index)] = l.Name
	}
	return b
}

func (b *book) hits(list []*met) []locate.Hit {
	objects := map[string]locate.Object{}
	var hits []locate.Hit
	for _, m := range list {
		key := fmt.Sprint(m.Place, m.handle, m.kind, m.target) // a map leads to one of many chains
		if _, ok := objects[key]; !ok {
			objects[key] = b.object(m)
		}
		h := locate.Hit{Object: objects[key], Verdict: m.name(), Stops: m.final(b.set.queues), Rewrote: m.rewriting(), Effect: m.made(), Hook: m.hook,
			Family: nfnl.FamilyName(m.Family), In: b.devices[m.packet.in], Out: b.devices[m.packet.out], Proto: m.packet.protocol()}
		h.Src, h.Dst = m.packet.addresses()
		hits = append(hits, h)
	}
	return hits
}

// object describes what a packet met.
func (b *book) object(m *met) locate.Object {
	if o, ok := b.savedObject(m); ok {
		return o
	}
	o := locate.Object{Kind: locate.Rule, Table: m.Table, Chain: m.Chain, Target: m.target, Comment: m.rule.comment}
	if m.kind == unix.NFT_TRACETYPE_POLICY {
		o.Text = m.String() + ": " + m.name()
		o.Usual = "policy accept"
		if isNamed(m.Place) {
			o.Fix = fmt.Sprintf("nft chain %s '{ policy accept; }'", quoted(m.Place))
		}
		return o
	}
	text := b.nftRules(m.Place)[m.handle]
	if text == "" {
		text = m.name()
	}
	o.Text = fmt.Sprintf("%s handle %d: %s", m.Place, m.handle, text)
	if isNamed(m.Place) {
		o.Fix = fmt.Sprintf("nft delete rule %s handle %d", quoted(m.Place), m.handle)
	}
	return o
}

// isNamed reports whether a command for nft can name the chain.
func isNamed(p nfnl.Place) bool { return nfnl.IsWord(p.Table) && nfnl.IsWord(p.Chain) }

// quoted is the chain with names that a shell takes literally.
func quoted(p nfnl.Place) string {
	return nfnl.FamilyName(p.Family) + " " + shell.Quote(p.Table) + " " + shell.Quote(p.Chain)
}

// nftRules returns the rules of a chain as nft prints them, by their handles; nothing without nft.
func (b *book) nftRules(p nfnl.Place) map[uint64]string {
	if rules, ok := b.listed[p]; ok {
		return rules
	}
	b.listed[p] = nil
	if isNamed(p) {
		out, _ := exec.Command("nft", "-s", "-a", "list", "chain", nfnl.FamilyName(p.Family), p.Table, p.Chain).Output()
		b.listed[p] = parseList(string(out))
	}
	return b.listed[p]
}

// maxText bounds the text of a rule: one may have a set of thousands of addresses.
const maxText = 300

var handle = regexp.MustCompile(`^(.*) # handle (\d+)$`)

// parseList reads what "nft -s -a list chain" prints.
func parseList(out string) map[uint64]string {
	rules := map[uint64]string{}
	text := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		found := handle.FindStringSubmatch(line)
		switch {
		case found != nil && strings.HasSuffix(found[1], "{") && text == "", // of the chain itself
			strings.HasPrefix(line, "table ") && strings.HasSuffix(line, "{"), text == "" && strings.HasSuffix(line, ";"):
		case line == "}":
			text = ""
		case found == nil:
			text = strings.TrimSpace(text + " " + line)
		default:
			n, _ := strconv.ParseUint(found[2], 10, 64)
			rules[n] = shorten(strings.TrimSpace(text + " " + found[1]))
			text = ""
		}
	}
	return rules
}

func shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + " …"
}
