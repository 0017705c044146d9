package rules

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// ParseNFT reads the output of "nft -j list ruleset" (libnftables-json(5)).
func ParseNFT(data []byte) ([]Chain, error) {
	var doc struct {
		Nftables []struct {
			Chain *struct {
				Family, Table, Name, Hook string
				Policy                    Verdict
				Prio                      int
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
	var all []Chain
	for _, o := range doc.Nftables {
		switch {
		case o.Chain != nil:
			c := o.Chain
			all = append(all, Chain{Family: c.Family, Table: c.Table, Name: c.Name, Hook: c.Hook, Priority: c.Prio,
				Policy: c.Policy})
		case o.Rule != nil:
			r := o.Rule
			i := slices.IndexFunc(all, func(c Chain) bool {
				return c.Family == r.Family && c.Table == r.Table && c.Name == r.Chain
			})
			if i >= 0 {
				rule := nftRule(r.Expr)
				rule.Text = fmt.Sprintf("rule %s handle %d%s", all[i], r.Handle, describe(rule))
				all[i].Rules = append(all[i].Rules, rule)
			}
		}
	}
	return all, nil
}

func describe(r Rule) string {
	text := ""
	for _, p := range r.Src.Prefixes {
		text += " saddr " + p.String()
	}
	for _, p := range r.Dst.Prefixes {
		text += " daddr " + p.String()
	}
	if len(r.DPorts) > 0 {
		text += fmt.Sprintf(" %s dport %s", r.Proto, r.DPorts)
	}
	return text + " " + string(r.Verdict)
}

// nftRule reads the statements of a rule. What it does not understand becomes a condition that never holds.
func nftRule(exprs []json.RawMessage) Rule {
	var r Rule
	for _, raw := range exprs {
		var e map[string]json.RawMessage
		if json.Unmarshal(raw, &e) != nil {
			r.UnknownIf = string(raw)
		}
		for kind, body := range e {
			r.statement(kind, body)
		}
	}
	return r
}

func (r *Rule) statement(kind string, body json.RawMessage) {
	var to struct{ Target string }
	switch kind {
	case "accept", "drop", "reject", "return", "masquerade":
		r.Verdict = Verdict(kind)
	case "snat":
		r.Verdict = Masquerade
	case "jump", "goto":
		if json.Unmarshal(body, &to) == nil {
			r.Verdict, r.Target = Verdict(kind), to.Target
		}
	case "counter", "comment", "log", "mangle", "notrack":
	case "match":
		changed := *r
		if !changed.match(body) {
			r.UnknownIf = string(body)
			return
		}
		*r = changed
	default:
		r.UnknownIf = kind
	}
}

// match adds a condition, and reports whether it understands it.
func (r *Rule) match(body json.RawMessage) bool {
	var m struct {
		Op   string
		Left struct {
			Payload *struct{ Protocol, Field string }
			Meta    *struct{ Key string }
			CT      *struct{ Key string }
			Fib     *struct {
				Result string
				Flags  []string
			}
			And []json.RawMessage `json:"&"`
		}
		Right json.RawMessage
	}
	if json.Unmarshal(body, &m) != nil || !slices.Contains([]string{"==", "!=", "in"}, m.Op) {
		return false
	}
	not := m.Op == "!="
	switch left := m.Left; {
	case left.Payload != nil:
		return r.matchPayload(left.Payload.Protocol, left.Payload.Field, m.Right, not)
	case left.Meta != nil:
		return r.matchMeta(left.Meta.Key, m.Right, not)
	case left.Fib != nil:
		r.DstType.Not = not
		return left.Fib.Result == "type" && slices.Equal(left.Fib.Flags, []string{"daddr"}) && json.Unmarshal(m.Right, &r.DstType.Name) == nil
	case len(left.And) == 2:
		return unmarked(left.And[0], m.Right, not)
	case left.CT != nil && left.CT.Key == "state":
		isFirst := len(r.State.Any) == 0
		r.State = StateMatch{stringsOf(m.Right), not}
		return isFirst && len(r.State.Any) > 0
	}
	return false
}

func (r *Rule) matchPayload(protocol, field string, right json.RawMessage, not bool) bool {
	switch field {
	case "saddr":
		r.Src = Match{Prefixes: prefixes(right), Not: not}
		return len(r.Src.Prefixes) > 0
	case "daddr":
		r.Dst = Match{Prefixes: prefixes(right), Not: not}
		return len(r.Dst.Prefixes) > 0
	case "dport":
		r.Proto = protocol
		r.DPorts = ports(right)
		return !not && len(r.DPorts) > 0
	case "protocol", "nexthdr":
		return !not && json.Unmarshal(right, &r.Proto) == nil
	}
	return false
}

func (r *Rule) matchMeta(key string, right json.RawMessage, not bool) bool {
	var value string
	if json.Unmarshal(right, &value) != nil {
		return false
	}
	switch key {
	case "iifname", "iif":
		r.In = DevMatch{value, not}
	case "oifname", "oif":
		r.Out = DevMatch{value, not}
	case "l4proto":
		r.Proto = value
		return !not
	default:
		return false
	}
	return true
}

// ports reads a port, a range, or a set of them. It returns nil for anything else.
func ports(raw json.RawMessage) Ports {
	var one int
	if json.Unmarshal(raw, &one) == nil {
		return Ports{{one, one}}
	}
	var o struct {
		Range []int
		Set   []json.RawMessage
	}
	if json.Unmarshal(raw, &o) != nil {
		return nil
	}
	if len(o.Range) == 2 {
		return Ports{{o.Range[0], o.Range[1]}}
	}
	var all Ports
	for _, element := range o.Set {
		some := ports(element)
		if len(some) == 0 {
			return nil
		}
		all = append(all, some...)
	}
	return all
}

// unmarked reports whether "meta mark & MASK == VALUE" holds for a packet without a mark.
func unmarked(left, right json.RawMessage, not bool) bool {
	var meta struct{ Meta struct{ Key string } }
	var value uint64
	return json.Unmarshal(left, &meta) == nil && meta.Meta.Key == "mark" && json.Unmarshal(right, &value) == nil &&
		(value == 0) != not
}

// stringsOf reads a string, or a list or a set of them.
func stringsOf(raw json.RawMessage) []string {
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

// prefixes reads an address, a prefix, or a set of them. It returns nil for anything else.
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
