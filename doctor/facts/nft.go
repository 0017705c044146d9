package facts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/doctor"
)

// parseNFT reads "nft -j list ruleset" (libnftables-json(5)).
func parseNFT(data []byte) ([]doctor.Chain, error) {
	var doc struct {
		Nftables []struct {
			Chain *struct {
				Family, Table, Name, Hook, Policy string
				Prio                              int
			}
			Rule *struct {
				Family, Table, Chain string
				Handle               int
				Expr                 []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("read nft's rules: %w", err)
	}
	var all []doctor.Chain
	for _, o := range doc.Nftables {
		switch {
		case o.Chain != nil:
			c := o.Chain
			all = append(all, doctor.Chain{Family: c.Family, Table: c.Table, Name: c.Name, Hook: c.Hook, Priority: c.Prio, Policy: c.Policy})
		case o.Rule != nil:
			r := o.Rule
			i := slices.IndexFunc(all, func(c doctor.Chain) bool { return c.Family == r.Family && c.Table == r.Table && c.Name == r.Chain })
			if i >= 0 {
				rule := nftRule(r.Expr)
				rule.Text = fmt.Sprintf("rule %s %s %s handle %d%s", r.Family, r.Table, r.Chain, r.Handle, said(rule))
				all[i].Rules = append(all[i].Rules, rule)
			}
		}
	}
	return all, nil
}

func said(r doctor.Rule) string {
	text := ""
	for name, m := range map[string]doctor.Match{" saddr ": r.Src, " daddr ": r.Dst} {
		for _, p := range m.Prefixes {
			text += name + p.String()
		}
	}
	if r.DPort != 0 {
		text += fmt.Sprintf(" %s dport %d", r.Proto, r.DPort)
	}
	return text + " " + r.Verdict
}

// nftRule reads a rule's statements. What it does not know is a condition that never holds.
func nftRule(exprs []json.RawMessage) doctor.Rule {
	var r doctor.Rule
	for _, raw := range exprs {
		var e map[string]json.RawMessage
		if json.Unmarshal(raw, &e) != nil {
			r.UnknownIf = string(raw)
			continue
		}
		for kind, body := range e {
			nftStatement(&r, kind, body)
		}
	}
	return r
}

func nftStatement(r *doctor.Rule, kind string, body json.RawMessage) {
	var to struct{ Target string }
	switch kind {
	case "accept", "drop", "reject", "return", "masquerade":
		r.Verdict = kind
	case "snat":
		r.Verdict = "masquerade"
	case "jump", "goto":
		if json.Unmarshal(body, &to) == nil {
			r.Verdict, r.Target = kind, to.Target
		}
	case "counter", "comment", "log", "mangle", "notrack":
	case "match":
		nftMatch(r, body)
	default:
		r.UnknownIf = kind
	}
}

// nftMatch reads one condition.
func nftMatch(r *doctor.Rule, body json.RawMessage) {
	var m struct {
		Op   string
		Left struct {
			Payload *struct{ Protocol, Field string }
			Meta    *struct{ Key string }
			CT      *struct{ Key string }
			And     []json.RawMessage `json:"&"`
		}
		Right json.RawMessage
	}
	r2, not := *r, false
	err := json.Unmarshal(body, &m)
	if m.Op == "!=" {
		not = true
	}
	known := err == nil && (m.Op == "==" || not || m.Op == "in")
	switch {
	case !known:
	case m.Left.Payload != nil:
		known = nftPayload(&r2, m.Left.Payload.Protocol, m.Left.Payload.Field, m.Right, not)
	case m.Left.Meta != nil:
		known = nftMeta(&r2, m.Left.Meta.Key, m.Right, not)
	case len(m.Left.And) == 2:
		known = unmarked(m.Left.And[0], m.Right, not)
	case m.Left.CT != nil && m.Left.CT.Key == "state":
		known = slices.Contains(words(m.Right), "new") != not
	default:
		known = false
	}
	if !known {
		r.UnknownIf = string(body)
		return
	}
	*r = r2
}

func nftPayload(r *doctor.Rule, protocol, field string, right json.RawMessage, not bool) bool {
	switch field {
	case "saddr":
		r.Src = doctor.Match{Prefixes: prefixes(right), Not: not}
		return len(r.Src.Prefixes) > 0
	case "daddr":
		r.Dst = doctor.Match{Prefixes: prefixes(right), Not: not}
		return len(r.Dst.Prefixes) > 0
	case "dport":
		r.Proto = protocol
		return !not && json.Unmarshal(right, &r.DPort) == nil
	case "protocol", "nexthdr":
		return !not && json.Unmarshal(right, &r.Proto) == nil
	}
	return false
}

func nftMeta(r *doctor.Rule, key string, right json.RawMessage, not bool) bool {
	var value string
	if json.Unmarshal(right, &value) != nil {
		return false
	}
	switch key {
	case "iifname", "iif":
		r.In = doctor.DevMatch{Name: value, Not: not}
	case "oifname", "oif":
		r.Out = doctor.DevMatch{Name: value, Not: not}
	case "l4proto":
		r.Proto = value
		return !not
	default:
		return false
	}
	return true
}

// unmarked says whether "meta mark & MASK == VALUE" holds for a packet that nobody has marked, as those that are tried.
func unmarked(left, right json.RawMessage, not bool) bool {
	var meta struct{ Meta struct{ Key string } }
	var value uint64
	if json.Unmarshal(left, &meta) != nil || meta.Meta.Key != "mark" || json.Unmarshal(right, &value) != nil {
		return false
	}
	return (value == 0) != not
}

// words is a string, or a list or a set of them.
func words(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var set struct{ Set []string }
	if json.Unmarshal(raw, &set) == nil {
		return set.Set
	}
	return nil
}

// prefixes is an address, a prefix, or a set of them; nil if it is anything else.
func prefixes(raw json.RawMessage) []netip.Prefix {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return match(text, false).Prefixes
	}
	var o struct {
		Prefix *struct {
			Addr netip.Addr
			Len  int
		}
		Set []json.RawMessage
	}
	if json.Unmarshal(raw, &o) != nil {
		return nil
	}
	if o.Prefix != nil {
		return []netip.Prefix{netip.PrefixFrom(o.Prefix.Addr, o.Prefix.Len).Masked()}
	}
	var all []netip.Prefix
	for _, element := range o.Set {
		one := prefixes(element)
		if len(one) == 0 {
			return nil
		}
		all = append(all, one...)
	}
	return all
}
